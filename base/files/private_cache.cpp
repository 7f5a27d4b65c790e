#include "base/files/private_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kPrivate = 0600;

// If other users can write there, they could plant files that we read later.
std::string why_unsafe(const fs::path& path, bool is_folder) {
  struct stat facts {};
  if (lstat(path.c_str(), &facts) != 0) return system_reason(errno);
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

}  // namespace

std::string why_not_trusted(const fs::path& root, const fs::path& path) {
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

std::string keep_private(const fs::path& root, const fs::path& path, std::string_view text) {
  std::string why = make_folders(root, path.parent_path());
  if (why.empty()) why = why_not_trusted(root, path);
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

std::string not_used_as_cache(const fs::path& root, const std::string& why) {
  return why.empty() ? "" : fmt::format("{} isn't used as a cache: {}", printable(root.string()), why);
}

}  // namespace vramfit
