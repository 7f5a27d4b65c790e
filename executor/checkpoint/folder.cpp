#include "executor/checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/text/suggest.h"
#include "executor/checkpoint/manifest.h"
#include "program/files/checkpoint_steps.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAside = ".saving-", kRemoved = ".removing-";

/// The step of a folder that an interrupted save or removal left.
std::optional<std::int64_t> leftover_step(std::string_view name) {
  for (const std::string_view prefix : {kAside, kRemoved}) {
    if (name.starts_with(prefix)) return checkpoint_step(name.substr(prefix.size()));
  }
  return std::nullopt;
}

bool is_rank_file(std::string_view name) {
  constexpr std::string_view kPrefix = "rank-";
  if (!name.starts_with(kPrefix)) return false;
  std::size_t rank = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), rank);
  return name == rank_file(rank);
}

void warn(const std::string& text) { std::fputs(("vramfit-train: warning: " + text + "\n").c_str(), stderr); }

void rename(FileCalls& files, const OpenFolder& directory, const std::string& from, const std::string& to) {
  check_call(files.rename(directory.descriptor(), from, to), directory.path_of(from), "can't be renamed");
}

/// Renames `from` to `to`, or to-2, to-3, ... when that is there already; the name it got.
std::string set_aside(FileCalls& files, const OpenFolder& directory, const std::string& from, const std::string& to) {
  std::string name = to;
  for (int i = 2; directory.has(name); ++i) name = fmt::format("{}-{}", to, i);
  rename(files, directory, from, name);
  return name;
}

/// Removes the folder and these files in it. With anything else in it the folder stays, under a name that is seen.
void remove_folder(FileCalls& files, const OpenFolder& directory, const std::string& folder, std::int64_t step,
                   const std::vector<std::string>& names) {
  const OpenFolder open = directory.open(folder);
  for (const std::string& name : names) {
    const int removed = files.remove_file(open.descriptor(), name);
    if (removed != ENOENT && removed != EISDIR) check_call(removed, open.path_of(name), "can't be removed");
  }
  const int removed = files.remove_directory(directory.descriptor(), folder);
  if (removed != ENOTEMPTY && removed != EEXIST) return check_call(removed, open.path(), "can't be removed");
  const std::string kept = set_aside(files, directory, folder, "kept-" + checkpoint_name(step));
  warn(fmt::format("{}: contains files that belong to no checkpoint; they stay in {}", printable(directory.path()),
                   kept));
}

/// What the checkpoint's manifest names; nothing without a readable one.
std::optional<std::vector<std::string>> names_in_manifest(const std::string& folder) {
  try {
    const std::size_t ranks = read_manifest(folder).files.size();
    std::vector<std::string> names{std::string(kManifestFile)};
    for (std::size_t rank = 0; rank < ranks; ++rank) names.push_back(rank_file(rank));
    return names;
  } catch (const ModelError&) {
    return std::nullopt;
  }
}

void remove_checkpoint(FileCalls& files, const OpenFolder& directory, std::int64_t step) {
  const std::string name = checkpoint_name(step), hidden = std::string(kRemoved) + name;
  const auto names = names_in_manifest(directory.path_of(name));
  if (!names) {
    const std::string aside = set_aside(files, directory, name, "damaged-" + name);
    return warn(fmt::format("{}: {} has no readable manifest, so it is renamed to {} and not removed",
                            printable(directory.path()), name, aside));
  }
  rename(files, directory, name, hidden);
  // Before its files go, so that a committed name never stands for half a checkpoint.
  directory.sync(files);
  remove_folder(files, directory, hidden, step, *names);
}

/// Of files without a manifest: those with the names that a checkpoint's have.
std::vector<std::string> checkpoint_files(const OpenFolder& folder) {
  std::vector<std::string> names = folder.names();
  std::erase_if(names, [](const std::string& name) { return name != kManifestFile && !is_rank_file(name); });
  return names;
}

}  // namespace

std::string committed_folder(const std::string& directory, std::int64_t step) {
  return directory + "/" + checkpoint_name(step);
}

std::string aside_name(std::int64_t step) { return std::string(kAside) + checkpoint_name(step); }

void commit(FileCalls& files, const OpenFolder& directory, std::int64_t step, std::string_view manifest) {
  const OpenFolder aside = directory.open(aside_name(step));
  OutputFile file(files, aside, std::string(kManifestFile));
  file.append(manifest);
  file.finish();
  aside.sync(files);
  check_call(files.rename(directory.descriptor(), aside_name(step), checkpoint_name(step)),
             directory.path_of(checkpoint_name(step)), "can't be committed");
  directory.sync(files);
}

void remove_older(FileCalls& files, const OpenFolder& directory, std::int64_t step, std::int64_t keep) {
  std::vector<std::int64_t> steps = steps_among(directory.names());
  std::erase_if(steps,
                [&](std::int64_t other) { return other > step || !directory.has_directory(checkpoint_name(other)); });
  const auto removed = static_cast<std::size_t>(std::max<std::int64_t>(0, std::ssize(steps) - keep));
  for (std::size_t i = 0; i < removed; ++i) remove_checkpoint(files, directory, steps[i]);
}

void remove_leftovers(FileCalls& files, const OpenFolder& directory) {
  check_call(::faccessat(directory.descriptor(), ".", W_OK | X_OK, 0) == 0 ? 0 : errno, directory.path(),
             "can't be written to");
  for (const std::string& name : directory.names()) {
    const std::optional<std::int64_t> step = leftover_step(name);
    if (!step) continue;
    if (!directory.has_directory(name)) {
      throw FaultError(
          fmt::format("checkpoint {}: is not the folder that an interrupted save leaves under this name; "
                      "remove it, or name another directory",
                      printable(directory.path_of(name))));
    }
    remove_folder(files, directory, name, *step, checkpoint_files(directory.open(name)));
  }
}

void set_damaged_aside(FileCalls& files, const OpenFolder& directory, std::int64_t step) {
  for (const std::int64_t later : steps_among(directory.names())) {
    if (later > step) set_aside(files, directory, checkpoint_name(later), "damaged-" + checkpoint_name(later));
  }
  directory.sync(files);
}

}  // namespace vramfit
