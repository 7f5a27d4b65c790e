// "org/name@revision" as users type it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vramfit {

struct ModelId {
  std::string repo;               // "org/name", or "name" for the few that have no organization
  std::string revision = "main";  // branch, tag or commit
  std::string text() const { return revision == "main" ? repo : repo + "@" + revision; }
};

/// Reads [hf://]ORG/NAME[@REVISION]; throws ModelError for anything else. Parts are at most 96 of A-Z a-z 0-9 . _ -,
/// start and end with a letter, digit or '_', and hold no ".." or "--" (huggingface_hub's own rules).
ModelId parse_model_id(std::string_view text);

/// 40 hexadecimal digits.
bool is_commit(std::string_view revision);

}  // namespace vramfit
