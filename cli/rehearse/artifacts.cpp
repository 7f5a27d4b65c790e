#include "cli/rehearse/artifacts.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

std::string with_mark(const fs::path& target, const std::string& mark) {
  return (target.parent_path() / (target.stem().string() + mark + target.extension().string())).string();
}

/// The process's rank, when no other process says the same of itself.
std::string mark_of(const ProcessRecord& process, const std::vector<ProcessRecord>& processes) {
  const bool own = process.rank && std::ranges::count(processes, process.rank, &ProcessRecord::rank) == 1;
  return own ? fmt::format(".rank{}", *process.rank) : fmt::format(".{}", process.process);
}

}  // namespace

void check_can_write(const std::string& flag, const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).parent_path();
  if (fs::is_directory(path, error)) throw InputError(fmt::format("{} {}: is a folder", flag, printable(path)));
  if (!fs::is_directory(folder, error) || ::access(folder.c_str(), W_OK) != 0) {
    throw InputError(
        fmt::format("{} {}: the folder {} can't be written", flag, printable(path), printable(folder.string())));
  }
}

std::vector<std::string> deliver(const std::string& folder, const std::string& kind,
                                 const std::vector<ProcessRecord>& processes, const std::string& target) {
  std::vector<std::pair<fs::path, std::string>> files;  // and what marks it
  for (const ProcessRecord& process : processes) {
    const std::string start = fmt::format("{}.{}.", kind, process.process);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(start)) files.emplace_back(entry.path(), mark_of(process, processes));
    }
  }
  std::vector<std::string> names;
  for (const auto& [file, mark] : files) {
    names.push_back(files.size() == 1 ? target : with_mark(target, mark));
    std::error_code error;
    fs::copy_file(file, names.back(), fs::copy_options::overwrite_existing, error);
    if (error) throw FaultError(fmt::format("{}: can't be written: {}", printable(names.back()), error.message()));
  }
  return names;
}

}  // namespace vramfit
