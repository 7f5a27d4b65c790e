#include "executor/data/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw InputError(fmt::format("data {}: {}", printable(path), why));
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

File::File(std::string path) : path_(std::move(path)) {
  // A FIFO would otherwise block here until somebody writes to it.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail(path_, reason(errno));
  struct stat facts {};
  const bool known = fstat(descriptor_, &facts) == 0;
  if (!known || !S_ISREG(facts.st_mode)) {
    close(descriptor_);
    fail(path_, "not a regular file");
  }
  bytes_ = facts.st_size;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}

void File::read(std::int64_t offset, std::span<char> into) const {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got =
        pread(descriptor_, into.data() + done, into.size() - done, offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, reason(errno));
    if (got == 0)
      fail(path_, fmt::format("ends at byte {}: it became shorter while in use", offset + std::int64_t(done)));
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace vramfit
