// Every file that the programs write. A regular file appears under its name once it is whole; devices, FIFOs and
// descriptors ("-", /dev/stdout, /dev/fd/63) are written to, never replaced.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace vramfit {

/// Whoever read stdout has closed it ("| head"): there is nobody to tell, so main ends without a message.
struct ReaderGone : FaultError {
  ReaderGone() : FaultError("stdout: its reader has closed it") {}
};

/// The descriptor that `path` stands for: 1 for "-", N for /dev/fd/N and /proc/self/fd/N, also /dev/stdin, /dev/stdout
/// and /dev/stderr. -1: it is the path of a file.
int descriptor_named(std::string_view path);

/// Whether text written to `path` comes out on stdout.
inline bool is_stdout(std::string_view path) { return descriptor_named(path) == 1; }

/// Whether `path` leads to a regular file or to nothing yet, so that files with similar names can lie beside it.
bool names_a_file(const std::string& path);

/// Why nothing can be written to `path`, or "". Creates and changes nothing; a full disk shows only when written to.
std::string why_not_writable(const std::string& path);

/// One file being written. Errors are FaultError "PATH: can't be written: WHY", or ReaderGone for stdout.
class ResultFile {
 public:
  /// A regular file is written under a random name beside `path` (opened with O_EXCL and O_NOFOLLOW); links are
  /// followed to what they lead to. A FIFO without a reader is waited for, 30 seconds at most. A new file
  /// gets `permissions` less the umask, one that was there keeps its own.
  explicit ResultFile(std::string path, unsigned permissions = 0666);
  /// Unless commit() came first, what was there before is still there and nothing else is left behind.
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;
  ResultFile(ResultFile&&) = delete;
  ResultFile& operator=(ResultFile&&) = delete;

  void write(std::string_view bytes);
  /// Flushes to the disk, closes, and puts a regular file under its name.
  void commit();

 private:
  void open_aside(const std::string& target, unsigned permissions);

  std::string path_;
  std::string target_, aside_;  // of a regular file: where `path_` leads, and what is written until then
  int descriptor_ = -1;
};

/// A descriptor to append to `path` with, made if it isn't there; the caller closes it. Throws as ResultFile does.
int open_to_append(const std::string& path);

/// All of `text`, and nothing else, to `path`; throws as ResultFile does.
void write_file(const std::string& path, std::string_view text);

}  // namespace vramfit
