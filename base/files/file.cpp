#include "base/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/text/suggest.h"
#include "base/text/system_reason.h"

namespace vramfit {

void fail_file(const FileRole& role, const std::string& path, const std::string& why) {
  const std::string message = fmt::format("{}{}{}: {}", role.name, role.name.empty() ? "" : " ", printable(path), why);
  if (role.code == ExitCode::model) throw ModelError(message);
  throw InputError(message);
}

File::File(std::string path, FileRole role) : path_(std::move(path)), role_(role) {
  // O_NONBLOCK: a FIFO would otherwise block here until somebody writes to it.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_file(role_, path_, system_reason(errno));
  struct stat facts {};
  const bool known = fstat(descriptor_, &facts) == 0;
  if (!known || !S_ISREG(facts.st_mode)) {
    close(descriptor_);
    fail_file(role_, path_, "not a regular file");
  }
  bytes_ = facts.st_size;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      role_(other.role_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

void File::read(std::int64_t offset, std::span<char> into) const {
  std::size_t done = 0;
  while (done < into.size()) {
    const std::int64_t at = offset + static_cast<std::int64_t>(done);
    const ssize_t got = pread(descriptor_, into.data() + done, into.size() - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_file(role_, path_, system_reason(errno));
    if (got == 0) {
      fail_file(role_, path_,
                fmt::format("ends at byte {} of {}: it became shorter while in use; start again when "
                            "nothing writes to it",
                            at, bytes_));
    }
    done += static_cast<std::size_t>(got);
  }
}

std::string read_file(const std::string& path, FileRole role, std::int64_t most) {
  const File file(path, role);
  if (file.bytes() > most) fail_file(role, path, fmt::format("{} bytes; expected at most {}", file.bytes(), most));
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, text);
  return text;
}

}  // namespace vramfit
