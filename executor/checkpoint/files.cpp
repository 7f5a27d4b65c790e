#include "executor/checkpoint/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "executor/checkpoint/crc32c.h"
#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

int outcome(int result) { return result == 0 ? 0 : errno; }

class RealFileCalls final : public FileCalls {
 public:
  int make_directory(const std::string& path) override { return outcome(::mkdir(path.c_str(), 0777)); }
  int create(const std::string& path) override {
    // No link is followed: the file is the folder's own.
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
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
  int sync_directory(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return errno;
    const int error = outcome(::fsync(descriptor));
    ::close(descriptor);
    return error;
  }
  int rename(const std::string& from, const std::string& to) override {
    return outcome(std::rename(from.c_str(), to.c_str()));
  }
  int remove_file(const std::string& path) override { return outcome(::unlink(path.c_str())); }
  int remove_directory(const std::string& path) override { return outcome(::rmdir(path.c_str())); }
};

}  // namespace

std::unique_ptr<FileCalls> real_file_calls() { return std::make_unique<RealFileCalls>(); }

void check_call(int error, const std::string& path, const char* what) {
  if (error == 0) return;
  throw FaultError(fmt::format("checkpoint {}: {}: {}", printable(path), what, std::generic_category().message(error)));
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void make_directories(FileCalls& files, const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  const std::string parent = parent_of(path);
  if (parent != path) make_directories(files, parent);
  const int made = files.make_directory(path);
  if (made == EEXIST && fs::is_directory(path, error)) return;  // another rank was faster
  check_call(made, path, "can't be made");
  check_call(files.sync_directory(parent), parent, "can't be synchronized");
}

void remove_folder(FileCalls& files, const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(path, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().string());
  }
  for (const std::string& name : names) {
    const int removed = files.remove_file(name);
    if (removed != ENOENT) check_call(removed, name, "can't be removed");
  }
  const int removed = files.remove_directory(path);
  if (removed != ENOENT) check_call(removed, path, "can't be removed");
}

OutputFile::OutputFile(FileCalls& files, std::string path) : files_(files), path_(std::move(path)) {
  descriptor_ = files_.create(path_);
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
