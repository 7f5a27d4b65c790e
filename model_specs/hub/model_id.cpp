#include "model_specs/hub/model_id.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/characters.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::size_t kLongestPart = 96;
constexpr std::size_t kCommitDigits = 40;

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_'; }

bool is_part(std::string_view part) {
  const auto allowed = [](char c) { return is_word(c) || c == '.' || c == '-'; };
  return !part.empty() && part.size() <= kLongestPart && std::all_of(part.begin(), part.end(), allowed) &&
         is_word(part.front()) && is_word(part.back()) && part.find("..") == std::string_view::npos &&
         part.find("--") == std::string_view::npos;
}

// Branches may hold slashes ("refs/pr/1").
bool is_revision(std::string_view revision) {
  if (revision.size() > kLongestPart) return false;
  for (std::size_t begin = 0; begin <= revision.size();) {
    const std::size_t end = std::min(revision.find('/', begin), revision.size());
    if (!is_part(revision.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

ModelId parse_model_id(std::string_view text) {
  constexpr std::string_view kPrefix = "hf://";
  const std::string_view given = text;
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  ModelId id;
  const std::size_t at = text.find('@');
  if (at != std::string_view::npos) id.revision = text.substr(at + 1);
  id.repo = text.substr(0, at);
  const std::size_t slash = id.repo.find('/');
  const std::string_view repo = id.repo;
  const bool is_repo =
      slash == std::string::npos ? is_part(repo) : is_part(repo.substr(0, slash)) && is_part(repo.substr(slash + 1));
  if (!is_repo || !is_revision(id.revision)) {
    throw ModelError(
        fmt::format("model \"{}\": neither a path that exists nor a model id; expected a catalog name, "
                    "ORG/NAME[@REVISION], a directory, a config.json or a .safetensors file",
                    printable(given)));
  }
  return id;
}

bool is_commit(std::string_view revision) {
  return revision.size() == kCommitDigits &&
         std::all_of(revision.begin(), revision.end(), [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

}  // namespace vramfit
