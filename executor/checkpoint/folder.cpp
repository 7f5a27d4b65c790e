#include "executor/checkpoint/folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>

#include "executor/checkpoint/manifest.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCommitted = "step-", kAside = ".saving-", kRemoved = ".removing-";

std::string name_of(std::int64_t step) { return fmt::format("{}{:08}", kCommitted, step); }

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kCommitted)) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(kCommitted.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool read = error == std::errc() && end == digits.data() + digits.size() && step > 0;
  if (!read || name != name_of(step)) return std::nullopt;
  return step;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

}  // namespace

std::string committed_folder(const std::string& directory, std::int64_t step) {
  return directory + "/" + name_of(step);
}

std::string aside_folder(const std::string& directory, std::int64_t step) {
  return fmt::format("{}/{}{}", directory, kAside, name_of(step));
}

std::vector<std::int64_t> committed_steps(const std::string& directory) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(directory)) {
    if (const std::optional<std::int64_t> step = step_of(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

void commit(FileCalls& files, const std::string& directory, std::int64_t step, std::string_view manifest) {
  const std::string aside = aside_folder(directory, step), folder = committed_folder(directory, step);
  OutputFile file(files, aside + "/" + std::string(kManifestFile));
  file.append(manifest);
  file.finish();
  check_call(files.sync_directory(aside), aside, "can't be synchronized");
  check_call(files.rename(aside, folder), folder, "can't be committed");
  check_call(files.sync_directory(directory), directory, "can't be synchronized");
}

void remove_older(FileCalls& files, const std::string& directory, std::int64_t step, std::int64_t keep) {
  std::vector<std::int64_t> steps = committed_steps(directory);
  std::erase_if(steps, [&](std::int64_t other) { return other > step; });
  const auto removed = static_cast<std::size_t>(std::max<std::int64_t>(0, std::ssize(steps) - keep));
  for (std::size_t i = 0; i < removed; ++i) {
    const std::string folder = committed_folder(directory, steps[i]);
    const std::string hidden = fmt::format("{}/{}{}", directory, kRemoved, name_of(steps[i]));
    check_call(files.rename(folder, hidden), folder, "can't be renamed");
    // Before its files go, so that a committed name never stands for half a checkpoint.
    check_call(files.sync_directory(directory), directory, "can't be synchronized");
    remove_folder(files, hidden);
  }
}

void prepare_directory(FileCalls& files, const std::string& directory) {
  make_directories(files, directory);
  check_call(::access(directory.c_str(), W_OK | X_OK) == 0 ? 0 : errno, directory, "can't be written to");
  for (const std::string& name : names_in(directory)) {
    if (name.starts_with(kAside) || name.starts_with(kRemoved))
      remove_folder(files, fmt::format("{}/{}", directory, name));
  }
}

void set_damaged_aside(FileCalls& files, const std::string& directory, std::int64_t step) {
  for (const std::int64_t later : committed_steps(directory)) {
    if (later <= step) continue;
    const std::string folder = committed_folder(directory, later);
    std::string to = fmt::format("{}/damaged-{}", directory, name_of(later));
    std::error_code error;
    for (int i = 2; fs::exists(to, error); ++i) to = fmt::format("{}/damaged-{}-{}", directory, name_of(later), i);
    check_call(files.rename(folder, to), folder, "can't be renamed");
  }
  check_call(files.sync_directory(directory), directory, "can't be synchronized");
}

}  // namespace vramfit
