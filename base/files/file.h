// An open regular file, read at positions: no shared offset, no mapping that a shrinking file could turn into a signal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace vramfit {

/// What a file is called in messages, and the exit code of its errors: usage (InputError) or model (ModelError).
struct FileRole {
  std::string_view name;  // "data"; "" where the path says enough
  ExitCode code;
};
inline constexpr FileRole kDataFile{"data", ExitCode::usage};
inline constexpr FileRole kModelFile{"model", ExitCode::model};
inline constexpr FileRole kWeightsFile{"weights", ExitCode::model};

/// Throws "ROLE PATH: WHY" as InputError or ModelError.
[[noreturn]] void fail_file(const FileRole& role, const std::string& path, const std::string& why);

class File {
 public:
  /// Throws like fail_file if `path` can't be opened or isn't a regular file.
  File(std::string path, FileRole role);
  ~File();
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::int64_t bytes() const { return bytes_; }
  /// Fills `into` from byte `offset` on; throws if the file is too short.
  void read(std::int64_t offset, std::span<char> into) const;

 private:
  std::string path_;
  FileRole role_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
};

/// The whole of a file of at most `most` bytes: what it holds when opened, so that /proc/kmsg, which never ends, is
/// empty.
std::string read_file(const std::string& path, FileRole role, std::int64_t most);

}  // namespace vramfit
