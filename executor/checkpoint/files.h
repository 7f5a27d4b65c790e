// The file-system calls that make and remove checkpoints, one function each, so that tests can record them, or let one
// of them fail or be the last.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace vramfit {

class OpenFolder;

/// Each returns 0, or the error number; `create` a descriptor, or minus the error number. `folder` is the descriptor of
/// an open directory and the names are of its entries: what a link in their place leads to is never touched.
struct FileCalls {
  virtual ~FileCalls() = default;
  virtual int make_directory(int folder, const std::string& name) = 0;
  virtual int create(int folder, const std::string& name) = 0;  // a new file for writing; EEXIST when it is there
  /// All of `bytes`.
  virtual int write(int descriptor, std::span<const char> bytes) = 0;
  virtual int sync(int descriptor) = 0;
  virtual int close(int descriptor) = 0;
  virtual int sync_directory(int folder) = 0;
  virtual int rename(int folder, const std::string& from, const std::string& to) = 0;
  virtual int remove_file(int folder, const std::string& name) = 0;
  virtual int remove_directory(int folder, const std::string& name) = 0;
};

std::unique_ptr<FileCalls> real_file_calls();

/// real_file_calls(), with VRAMFIT_FILE_FAULT=KIND@N at fault from the Nth call of this process on. KIND is `kill` (the
/// process kills itself instead of the call; a write is done by half before), `no-space` (writing calls fail as on a
/// full disk) or `read-only` (every call but close fails as on a read-only file system). VRAMFIT_FILE_FAULT_RANK limits
/// it to one rank. For tests. Throws InputError for another value.
std::unique_ptr<FileCalls> file_calls_from_environment(int rank);

/// Throws FaultError "checkpoint PATH: WHAT: why" unless `error` is 0.
void check_call(int error, const std::string& path, const char* what);

/// The directory that holds `path`.
std::string parent_of(const std::string& path);

/// A file being written. Its size and checksum grow with it.
class OutputFile {
 public:
  OutputFile(FileCalls& files, const OpenFolder& folder, const std::string& name);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile(OutputFile&&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;

  void append(std::span<const char> bytes);
  /// To the disk: written, synchronized and closed.
  void finish();

  std::int64_t bytes() const { return bytes_; }
  std::uint32_t checksum() const { return checksum_; }

 private:
  FileCalls& files_;
  std::string path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
  std::uint32_t checksum_ = 0;
};

}  // namespace vramfit
