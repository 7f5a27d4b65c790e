#include "executor/checkpoint/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "model_specs/file.h"
#include "model_specs/units.h"

namespace vramfit {

MappedFile::MappedFile(const std::string& path) {
  const File file(path, kWeightsFile);
  bytes_ = file.bytes();
  if (bytes_ == 0) return;
  void* mapped = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (mapped == MAP_FAILED) fail_file(kWeightsFile, path, std::generic_category().message(errno));
  data_ = static_cast<char*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
}

void MappedFile::drop(std::int64_t offset, std::int64_t bytes) const {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  const std::int64_t begin = round_up(offset, page), end = (offset + bytes) / page * page;
  // A hint: when it fails, pages only stay mapped for longer.
  if (begin < end) madvise(data_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

}  // namespace vramfit
