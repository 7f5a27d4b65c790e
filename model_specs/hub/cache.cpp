#include "model_specs/hub/cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include <fmt/format.h>

#include "model_specs/error.h"
#include "model_specs/file.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLongestRef = 256;

fs::path model_folder(const fs::path& root, const ModelId& id) {
  std::string name = "models--" + id.repo;
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos) name.replace(slash, 1, "--");
  return root / name;
}

// If other users can write there, they could plant files that we read later.
std::string why_unsafe(const fs::path& root) {
  struct stat facts {};
  if (lstat(root.c_str(), &facts) != 0) return std::generic_category().message(errno);
  if (!S_ISDIR(facts.st_mode)) return "it isn't a directory";
  if (facts.st_uid != geteuid()) return "it belongs to another user";
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others may write to it";
  return "";
}

// Readers see the old file or the new one, never a part.
std::string write_aside(const fs::path& path, std::string_view text) {
  std::string aside = path.string() + ".XXXXXX";
  const int descriptor = mkstemp(aside.data());
  if (descriptor < 0) return std::generic_category().message(errno);
  std::size_t done = 0;
  bool is_written = true;
  while (is_written && done < text.size()) {
    const ssize_t wrote = write(descriptor, text.data() + done, text.size() - done);
    is_written = wrote > 0;
    done += is_written ? static_cast<std::size_t>(wrote) : 0;
  }
  is_written = is_written && fsync(descriptor) == 0;
  is_written = close(descriptor) == 0 && is_written;
  if (is_written && rename(aside.c_str(), path.c_str()) == 0) return "";
  std::string why = std::generic_category().message(errno);
  unlink(aside.c_str());
  return why;
}

std::string make_folders(const fs::path& root, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(root.parent_path(), error);
  if (!error && fs::create_directory(root, error)) fs::permissions(root, fs::perms::owner_all, error);
  if (error) return error.message();
  if (std::string why = why_unsafe(root); !why.empty()) return why;
  fs::create_directories(folder, error);
  return error ? error.message() : "";
}

std::string keep(const fs::path& root, const fs::path& path, std::string_view text) {
  std::string why = make_folders(root, path.parent_path());
  return why.empty() ? write_aside(path, text) : why;
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

std::string keep_in_cache(const fs::path& root, const ModelId& id, const std::string& commit, const std::string& file,
                          std::string_view text) {
  if (root.empty() || !is_commit(commit)) return "";
  const fs::path folder = model_folder(root, id);
  std::string why = keep(root, folder / "snapshots" / commit / file, text);
  if (why.empty() && !is_commit(id.revision)) why = keep(root, folder / "refs" / id.revision, commit);
  return why.empty() ? "" : fmt::format("{} isn't used as a cache: {}", printable(root.string()), why);
}

}  // namespace vramfit
