#include "cli/files.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/files/file.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
constexpr FileRole kGivenFile{"", ExitCode::usage};

}  // namespace

std::string read_file(const std::string& path) { return read_file(path, kGivenFile, kMostBytes); }

void check_output(const std::string& flag, const std::string& path) {
  const std::string why = path.empty() ? "" : why_not_writable(path);
  if (!why.empty()) throw FaultError(fmt::format("{} {}: can't be written: {}", flag, printable(path), why));
}

std::string file_beside(const std::string& path, std::string_view part) {
  return std::filesystem::path(path).replace_extension(fmt::format(".{}.json", part)).string();
}

}  // namespace vramfit
