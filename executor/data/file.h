// An open regular file, read at positions: no shared offset, no mapping that a shrinking file could turn into a signal.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace vramfit {

class File {
 public:
  /// Throws InputError when `path` can't be opened or isn't a regular file.
  explicit File(std::string path);
  ~File();
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return bytes_; }
  /// Fills `into` from byte `offset` on; throws InputError when the file ends before.
  void read(std::int64_t offset, std::span<char> into) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
};

}  // namespace vramfit
