#include "executor/checkpoint/open_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

namespace vramfit {
namespace {

constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

struct CloseListing {
  void operator()(DIR* listing) const { ::closedir(listing); }
};

}  // namespace

OpenFolder OpenFolder::at(const std::string& path) {
  const int descriptor = ::open(path.c_str(), kDirectory);
  if (descriptor < 0) check_call(errno, path, "can't be opened");
  return {path, descriptor};
}

OpenFolder OpenFolder::make(FileCalls& files, const std::string& path) {
  const int descriptor = ::open(path.c_str(), kDirectory);
  if (descriptor >= 0) return {path, descriptor};
  if (errno != ENOENT) check_call(errno, path, "can't be opened");
  const OpenFolder above = make(files, parent_of(path));
  const std::string name = std::filesystem::path(path).filename().string();
  return name.empty() ? at(path) : above.make_entry(files, name);  // "a/b/" is "a/b", which is there by now
}

OpenFolder::~OpenFolder() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

OpenFolder::OpenFolder(OpenFolder&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OpenFolder OpenFolder::open(const std::string& name) const {
  const int descriptor = ::openat(descriptor_, name.c_str(), kDirectory | O_NOFOLLOW);
  if (descriptor < 0) check_call(errno, path_of(name), "can't be opened as a directory");
  return {path_of(name), descriptor};
}

OpenFolder OpenFolder::make_entry(FileCalls& files, const std::string& name) const {
  const int made = files.make_directory(descriptor_, name);
  if (made != EEXIST) {  // else another rank was faster
    check_call(made, path_of(name), "can't be made");
    sync(files);
  }
  return open(name);
}

std::vector<std::string> OpenFolder::names() const {
  // A descriptor of its own: the position in a listing belongs to the open file.
  const int descriptor = ::openat(descriptor_, ".", kDirectory);
  const std::unique_ptr<DIR, CloseListing> listing(descriptor < 0 ? nullptr : ::fdopendir(descriptor));
  if (listing == nullptr) check_call(errno, path_, "can't be listed");
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(listing.get())) {  // NOLINT(concurrency-mt-unsafe): a listing of our own
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  check_call(errno, path_, "can't be listed");
  return names;
}

bool OpenFolder::has(const std::string& name) const {
  struct stat entry {};
  return ::fstatat(descriptor_, name.c_str(), &entry, AT_SYMLINK_NOFOLLOW) == 0;
}

bool OpenFolder::has_directory(const std::string& name) const {
  struct stat entry {};
  return ::fstatat(descriptor_, name.c_str(), &entry, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(entry.st_mode);
}

void OpenFolder::sync(FileCalls& files) const {
  check_call(files.sync_directory(descriptor_), path_, "can't be synchronized");
}

}  // namespace vramfit
