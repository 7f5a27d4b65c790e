#include "base/files/result_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/text/suggest.h"
#include "base/text/system_reason.h"

namespace vramfit {
namespace {

constexpr std::chrono::seconds kReaderWait{30};
constexpr std::chrono::milliseconds kReaderPoll{20};
constexpr mode_t kPermissions = 0777;

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw FaultError(fmt::format("{}: can't be written: {}", is_stdout(path) ? "stdout" : printable(path), why));
}

/// Where a path leads. `file` also when nothing is there yet.
struct Target {
  std::string path;
  bool file = true, exists = false, dangling = false;
  mode_t mode = 0;
};

std::string path_of(int descriptor) {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink(fmt::format("/proc/self/fd/{}", descriptor).c_str(), path.data(), path.size());
  return length < 0 ? "" : std::string(path.data(), static_cast<std::size_t>(length));
}

/// 0 or errno. The kernel follows the links, so its protection of links in shared folders holds.
int locate(const std::string& path, Target& target) {
  target = {.path = path};
  struct stat facts {};
  if (lstat(path.c_str(), &facts) != 0) return errno == ENOENT ? 0 : errno;
  if (S_ISLNK(facts.st_mode)) {
    const int end = open(path.c_str(), O_PATH | O_CLOEXEC);
    target.dangling = end < 0 && errno == ENOENT;
    if (target.dangling) return 0;
    if (end < 0 || fstat(end, &facts) != 0) return errno;
    target.path = path_of(end);
    close(end);
    if (target.path.empty()) return EACCES;  // no /proc here
  }
  target.exists = true;
  target.file = S_ISREG(facts.st_mode);
  target.mode = facts.st_mode;
  return 0;
}

/// A link to nothing: the file that it names, for whose making the kernel follows it.
std::string end_of_dangling(const std::string& path) {
  const int made = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
  if (made < 0) fail(path, system_reason(errno));
  std::string end = path_of(made);
  struct stat facts {};
  const bool empty = fstat(made, &facts) == 0 && facts.st_size == 0;
  close(made);
  if (end.empty()) fail(path, "it is a link, and there is no /proc to follow it with");
  if (empty) unlink(end.c_str());
  return end;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// O_NONBLOCK while opening, or a FIFO that nobody reads would hold us for ever.
int open_in_place(const std::string& path, mode_t mode) {
  const auto give_up = std::chrono::steady_clock::now() + kReaderWait;
  while (true) {
    const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor >= 0) {
      fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
      return descriptor;
    }
    const bool lacks_reader = errno == ENXIO && S_ISFIFO(mode);
    if (!lacks_reader) fail(path, system_reason(errno));
    if (std::chrono::steady_clock::now() >= give_up) fail(path, "nobody reads from this FIFO");
    std::this_thread::sleep_for(kReaderPoll);
  }
}

/// A copy of the descriptor that `path` stands for; -1: it stands for none.
int copy_of_named(const std::string& path) {
  const int named = descriptor_named(path);
  if (named < 0) return -1;
  if (named == STDOUT_FILENO) std::fflush(stdout);  // what was printed before comes first
  const int copy = fcntl(named, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (copy < 0) fail(path, system_reason(errno));
  return copy;
}

std::string why_not_writable_descriptor(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0) return system_reason(errno);
  return (flags & O_ACCMODE) == O_RDONLY ? "it is open for reading only" : "";
}

}  // namespace

int descriptor_named(std::string_view path) {
  constexpr std::array<std::pair<std::string_view, int>, 4> kNames{
      {{"-", 1}, {"/dev/stdin", 0}, {"/dev/stdout", 1}, {"/dev/stderr", 2}}};
  for (const auto& [name, descriptor] : kNames) {
    if (path == name) return descriptor;
  }
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const std::string_view digits = path.substr(folder.size());
    int descriptor = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), descriptor);
    if (error == std::errc{} && end == digits.data() + digits.size() && descriptor >= 0) return descriptor;
  }
  return -1;
}

bool names_a_file(const std::string& path) {
  if (descriptor_named(path) >= 0) return false;
  Target target;
  return locate(path, target) != 0 || target.file;
}

std::string why_not_writable(const std::string& path) {
  if (const int named = descriptor_named(path); named >= 0) return why_not_writable_descriptor(named);
  Target target;
  if (const int error = locate(path, target); error != 0) return system_reason(error);
  if (S_ISDIR(target.mode)) return "is a directory";
  const bool refuses = target.exists && faccessat(AT_FDCWD, target.path.c_str(), W_OK, AT_EACCESS) != 0;
  if (refuses) return system_reason(errno);
  if (!target.file || target.dangling) return "";
  const std::string folder = folder_of(target.path);
  if (faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return "";
  return fmt::format("the folder {}: {}", printable(folder), system_reason(errno));
}

ResultFile::ResultFile(std::string path, unsigned permissions) : path_(std::move(path)) {
  descriptor_ = copy_of_named(path_);
  if (descriptor_ >= 0) return;
  if (const std::string why = why_not_writable(path_); !why.empty()) fail(path_, why);
  Target target;
  if (const int error = locate(path_, target); error != 0) fail(path_, system_reason(error));
  if (!target.file) {
    descriptor_ = open_in_place(path_, target.mode);
    return;
  }
  open_aside(target.dangling ? end_of_dangling(path_) : target.path, permissions);
  if (target.exists) fchmod(descriptor_, target.mode & kPermissions);
}

void ResultFile::open_aside(const std::string& target, unsigned permissions) {
  std::uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) fail(path_, system_reason(errno));
  const std::string aside = fmt::format("{}/.vramfit-{:016x}", folder_of(target), random);
  descriptor_ = open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, permissions);
  if (descriptor_ < 0) fail(path_, system_reason(errno));
  target_ = target;
  aside_ = aside;
}

ResultFile::~ResultFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!aside_.empty()) unlink(aside_.c_str());
}

void ResultFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
    if (count > 0 || (count < 0 && errno == EINTR)) continue;
    if (count < 0 && errno == EAGAIN) {  // a descriptor that somebody else made non-blocking
      pollfd wanted{descriptor_, POLLOUT, 0};
      poll(&wanted, 1, -1);
      continue;
    }
    if (errno == EPIPE && is_stdout(path_)) throw ReaderGone();
    fail(path_, system_reason(count == 0 ? ENOSPC : errno));
  }
}

void ResultFile::commit() {
  if (!aside_.empty() && fsync(descriptor_) != 0) fail(path_, system_reason(errno));
  if (close(std::exchange(descriptor_, -1)) != 0) fail(path_, system_reason(errno));
  if (aside_.empty()) return;
  if (rename(aside_.c_str(), target_.c_str()) != 0) fail(path_, system_reason(errno));
  aside_.clear();
}

int open_to_append(const std::string& path) {
  if (const int copy = copy_of_named(path); copy >= 0) return copy;
  Target target;
  if (const int error = locate(path, target); error != 0) fail(path, system_reason(error));
  if (!target.file) return open_in_place(path, target.mode);
  const int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
  if (descriptor < 0) fail(path, system_reason(errno));
  return descriptor;
}

void write_file(const std::string& path, std::string_view text) {
  ResultFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace vramfit
