#include "cli/private_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"
#include "cli/launch/environment.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "vramfit-";
// Other folders that begin like ours are somebody else's, such as a kept session's.
constexpr std::array<std::string_view, 2> kPurposes{"rehearsal", "run"};
constexpr std::string_view kRandom = "XXXXXX";  // what mkdtemp replaces

std::string parent() {
  const std::string set = environment_value("TMPDIR");
  return set.empty() ? "/tmp" : set;
}

int open_folder(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool is_named(const std::string& path, int descriptor) {
  struct stat named {
  }, opened{};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

bool is_own_name(std::string_view name) {
  for (const std::string_view purpose : kPurposes) {
    const std::string begin = fmt::format("{}{}-", kPrefix, purpose);
    if (name.starts_with(begin) && name.size() == begin.size() + kRandom.size()) return true;
  }
  return false;
}

void remove_all(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);  // follows no links
}

void sweep(const std::string& path) {
  const int descriptor = open_folder(path);
  if (descriptor < 0) return;
  struct stat folder {};
  const bool is_own = ::fstat(descriptor, &folder) == 0 && folder.st_uid == ::geteuid();
  if (is_own && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) remove_all(path);
  ::close(descriptor);
}

}  // namespace

PrivateFolder::PrivateFolder(std::string_view purpose) {
  while (!make(fmt::format("{}/{}{}-{}", parent(), kPrefix, purpose, kRandom))) {
  }
}

/// False when another command swept the folder between its making and its locking.
bool PrivateFolder::make(const std::string& pattern) {
  path_ = pattern;
  if (::mkdtemp(path_.data()) != nullptr) {
    descriptor_ = open_folder(path_);
    while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
    if (descriptor_ >= 0 && is_named(path_, descriptor_)) return true;
    if (descriptor_ >= 0) ::close(descriptor_);
    return false;
  }
  const std::string why = system_reason(errno);
  throw FaultError(
      fmt::format("TMPDIR {}: no folder can be made there: {}; set TMPDIR to a directory that exists and can "
                  "be written to",
                  printable(parent()), why));
}

PrivateFolder::~PrivateFolder() {
  remove_all(path_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void sweep_private_folders() {
  std::error_code error;
  for (fs::directory_iterator entry(parent(), error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (is_own_name(entry->path().filename().string())) sweep(entry->path().string());
  }
}

}  // namespace vramfit
