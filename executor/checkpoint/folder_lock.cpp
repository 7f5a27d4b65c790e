#include "executor/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text/suggest.h"
#include "executor/place/own_address.h"

namespace vramfit {
namespace {

constexpr const char* kName = ".vramfit-lock";

/// What the holder wrote; it may be about to, so an empty file is looked at for a second.
std::string holder(int file) {
  std::array<char, 256> text{};
  for (int tries = 0; tries < 50; ++tries) {
    const ssize_t length = ::pread(file, text.data(), text.size(), 0);
    if (length > 0) return printable({text.data(), static_cast<std::size_t>(length)}, text.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return "it has not said which";
}

/// Whether `file` still has its name: a run that ended meanwhile has removed the file that it locked.
bool is_named(int folder, int file) {
  struct stat named {
  }, opened{};
  return ::fstat(file, &opened) == 0 && ::fstatat(folder, kName, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

/// A regular file without other names: nothing that was put there to be overwritten.
bool is_plain(int file) {
  struct stat entry {};
  return ::fstat(file, &entry) == 0 && S_ISREG(entry.st_mode) && entry.st_nlink <= 1;
}

}  // namespace

FolderLock::FolderLock(const OpenFolder& folder, const std::string& flag)
    : folder_(::fcntl(folder.descriptor(), F_DUPFD_CLOEXEC, 0)) {
  if (folder_ < 0) check_call(errno, folder.path(), "can't be locked");
  try {
    while (!take(folder, flag)) {
    }
  } catch (...) {
    if (file_ >= 0) ::close(file_);
    ::close(folder_);
    throw;
  }
  if (file_ >= 0) sign();
}

/// False when the file was removed between opening and locking it.
bool FolderLock::take(const OpenFolder& folder, const std::string& flag) {
  constexpr int kOpen = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_ = ::openat(folder_, kName, kOpen, 0666);
  if (file_ < 0) check_call(errno, folder.path_of(kName), "can't be opened");
  const int error = ::flock(file_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  if (error == EWOULDBLOCK) {
    throw InputError(fmt::format("{} {}: in use by another run ({}); wait for it, end it, or name another directory",
                                 flag, printable(folder.path()), holder(file_)));
  }
  if (error == 0 && !is_named(folder_, file_)) {
    ::close(std::exchange(file_, -1));
    return false;
  }
  if (!is_plain(file_)) {
    throw FaultError(fmt::format("checkpoint {}: was not written by vramfit; remove it, or choose another directory",
                                 printable(folder.path_of(kName))));
  }
  if (error == 0) return true;
  std::fputs(
      fmt::format("vramfit-train: warning: {} {}: this file system has no locks; make sure that no other run saves "
                  "there\n",
                  flag, printable(folder.path()))
          .c_str(),
      stderr);
  ::close(std::exchange(file_, -1));
  return true;
}

void FolderLock::sign() const {
  const std::string text = fmt::format("pid {} on {}, started {:%Y-%m-%d %H:%M:%S} UTC", ::getpid(), node_name(),
                                       fmt::gmtime(std::time(nullptr)));
  // Whoever is locked out is told what is there; a disk too full for it doesn't make the lock weaker.
  [[maybe_unused]] const bool signed_off =
      ::ftruncate(file_, 0) == 0 && ::pwrite(file_, text.data(), text.size(), 0) > 0;
}

FolderLock::~FolderLock() {
  if (file_ >= 0) {
    ::unlinkat(folder_, kName, 0);  // while it is locked, so that the file is our own
    ::close(file_);
  }
  ::close(folder_);
}

}  // namespace vramfit
