// What an imported job says.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/configs/import.h"
#include "tests/support/temporary_directory.h"

namespace vramfit::testing {

/// Of a file of this name with this text.
inline ImportedJob imported(const std::string& name, const std::string& text) {
  const TemporaryDirectory place;
  return import_configs({place.write(name, text)});
}

/// "" where nothing set it.
inline std::string value_of(const ImportedJob& job, std::string_view field) {
  const auto found = std::ranges::find_if(job.fields, [&](const auto& each) { return each.first == field; });
  return found == job.fields.end() ? "" : found->second;
}

/// Whether one of these is of `key` and says `text`.
inline bool says(const std::vector<Finding>& findings, std::string_view key, std::string_view text) {
  return std::ranges::any_of(findings, [&](const Finding& finding) {
    return finding.key == key && finding.says.find(text) != std::string::npos;
  });
}

}  // namespace vramfit::testing
