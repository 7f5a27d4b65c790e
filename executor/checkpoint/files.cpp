#include "executor/checkpoint/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"
#include "executor/checkpoint/crc32c.h"
#include "executor/checkpoint/open_folder.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

int outcome(int result) { return result == 0 ? 0 : errno; }

class RealFileCalls final : public FileCalls {
 public:
  int make_directory(int folder, const std::string& name) override {
    return outcome(::mkdirat(folder, name.c_str(), 0777));
  }
  int create(int folder, const std::string& name) override {
    // Neither a link nor a file that is there already: another name of it may lie anywhere.
    constexpr int kNewFile = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    const int descriptor = ::openat(folder, name.c_str(), kNewFile, 0666);
    return descriptor >= 0 ? descriptor : -errno;
  }
  int write(int descriptor, std::span<const char> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno;
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return 0;
  }
  int sync(int descriptor) override { return outcome(::fsync(descriptor)); }
  int close(int descriptor) override { return outcome(::close(descriptor)); }
  int sync_directory(int folder) override { return outcome(::fsync(folder)); }
  int rename(int folder, const std::string& from, const std::string& to) override {
    return outcome(::renameat(folder, from.c_str(), folder, to.c_str()));
  }
  int remove_file(int folder, const std::string& name) override { return outcome(::unlinkat(folder, name.c_str(), 0)); }
  int remove_directory(int folder, const std::string& name) override {
    return outcome(::unlinkat(folder, name.c_str(), AT_REMOVEDIR));
  }
};

}  // namespace

std::unique_ptr<FileCalls> real_file_calls() { return std::make_unique<RealFileCalls>(); }

void check_call(int error, const std::string& path, const char* what) {
  if (error == 0) return;
  throw FaultError(fmt::format("checkpoint {}: {}: {}", printable(path), what, system_reason(error)));
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

OutputFile::OutputFile(FileCalls& files, const OpenFolder& folder, const std::string& name)
    : files_(files), path_(folder.path_of(name)), descriptor_(files_.create(folder.descriptor(), name)) {
  if (descriptor_ < 0) check_call(-descriptor_, path_, "can't be made");
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) files_.close(descriptor_);
}

void OutputFile::append(std::span<const char> bytes) {
  check_call(files_.write(descriptor_, bytes), path_, "can't be written");
  checksum_ = crc32c(bytes, checksum_);
  bytes_ += static_cast<std::int64_t>(bytes.size());
}

void OutputFile::finish() {
  check_call(files_.sync(descriptor_), path_, "can't be synchronized");
  check_call(files_.close(std::exchange(descriptor_, -1)), path_, "can't be closed");
}

}  // namespace vramfit
