#include "model_specs/hub/cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/result_file.h"
#include "base/suggest.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLongestRef = 256;
constexpr unsigned kPrivate = 0600;

fs::path model_folder(const fs::path& root, const ModelId& id) {
  std::string name = "models--" + id.repo;
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos) name.replace(slash, 1, "--");
  return root / name;
}

// If other users can write there, they could plant files that we read later.
std::string why_unsafe(const fs::path& path, bool is_folder) {
  struct stat facts {};
  if (lstat(path.c_str(), &facts) != 0) return std::generic_category().message(errno);
  if (is_folder && !S_ISDIR(facts.st_mode)) return "it isn't a directory";
  if (!is_folder && !S_ISREG(facts.st_mode)) return "it isn't a regular file";
  if (facts.st_uid != geteuid()) return "it belongs to another user";
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others may write to it";
  return "";
}

bool is_closed_to_others(const fs::path& folder) {
  struct stat facts {};
  return lstat(folder.c_str(), &facts) == 0 && (facts.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

// `root`, each folder below it on the way to `path`, and `path` itself, as far as they are there.
std::string why_unsafe_way(const fs::path& root, const fs::path& path) {
  std::vector<fs::path> way{root};
  for (const fs::path& part : path.lexically_relative(root)) way.push_back(way.back() / part);
  for (const fs::path& step : way) {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(step, error))) return "";
    const std::string why = why_unsafe(step, &step != &way.back());
    if (!why.empty()) return step == root ? why : fmt::format("{}: {}", printable(step.string()), why);
    if (step == root && is_closed_to_others(root)) return "";
  }
  return "";
}

// Folders that others can't write to whatever the umask is.
std::string make_private(const fs::path& folder) {
  std::error_code error;
  if (fs::create_directory(folder, error)) fs::permissions(folder, fs::perms::owner_all, error);
  return error ? error.message() : "";
}

std::string make_folders(const fs::path& root, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(root.parent_path(), error);
  if (error) return error.message();
  fs::path made = root;
  std::string why = make_private(made);
  for (const fs::path& part : folder.lexically_relative(root)) {
    if (why.empty()) why = make_private(made /= part);
  }
  return why;
}

std::string keep(const fs::path& root, const fs::path& path, std::string_view text) {
  std::string why = make_folders(root, path.parent_path());
  if (why.empty()) why = why_unsafe_way(root, path);
  if (!why.empty()) return why;
  try {
    ResultFile file(path.string(), kPrivate);
    file.write(text);
    file.commit();
    return "";
  } catch (const FaultError& error) {
    return error.what();
  }
}

std::string not_used(const fs::path& root, const std::string& why) {
  return why.empty() ? "" : fmt::format("{} isn't used as a cache: {}", printable(root.string()), why);
}

}  // namespace

std::optional<CachedFile> find_cached(const fs::path& root, const ModelId& id, const std::string& file) {
  if (root.empty()) return std::nullopt;
  const fs::path folder = model_folder(root, id);
  CachedFile found;
  std::error_code error;
  if (is_commit(id.revision)) {
    found.commit = id.revision;
  } else {
    const fs::path ref = folder / "refs" / id.revision;
    if (!fs::is_regular_file(ref, error)) return std::nullopt;
    found.commit = read_file(ref, kModelFile, kLongestRef);
    if (!is_commit(found.commit)) return std::nullopt;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(ref, error);
    found.age = std::chrono::duration_cast<std::chrono::seconds>(age);
  }
  found.path = folder / "snapshots" / found.commit / file;
  if (!fs::is_regular_file(found.path, error)) return std::nullopt;
  return found;
}

std::optional<CachedFile> find_kept(const fs::path& root, const ModelId& id, const std::string& file,
                                    std::string& why_not) {
  if (root.empty()) return std::nullopt;
  const fs::path folder = model_folder(root, id);
  std::string why = is_commit(id.revision) ? "" : why_unsafe_way(root, folder / "refs" / id.revision);
  std::optional<CachedFile> found;
  if (why.empty()) found = find_cached(root, id, file);
  if (found) why = why_unsafe_way(root, found->path);
  why_not = not_used(root, why);
  return why.empty() ? found : std::nullopt;
}

std::string keep_in_cache(const fs::path& root, const ModelId& id, const std::string& commit, const std::string& file,
                          std::string_view text) {
  if (root.empty() || !is_commit(commit)) return "";
  const fs::path folder = model_folder(root, id);
  std::string why = keep(root, folder / "snapshots" / commit / file, text);
  if (why.empty() && !is_commit(id.revision)) why = keep(root, folder / "refs" / id.revision, commit);
  return not_used(root, why);
}

}  // namespace vramfit
