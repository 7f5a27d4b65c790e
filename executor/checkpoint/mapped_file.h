// A file mapped for reading.
#pragma once

#include <cstdint>
#include <string>

namespace vramfit {

class MappedFile {
 public:
  /// Throws ModelError when the file can't be opened or mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile(MappedFile&&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

  std::int64_t bytes() const { return bytes_; }
  const char* data() const { return data_; }
  /// Tells the kernel that this range isn't needed any more, so that it doesn't count towards the resident set.
  void drop(std::int64_t offset, std::int64_t bytes) const;

 private:
  char* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace vramfit
