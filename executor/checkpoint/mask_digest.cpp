#include "executor/checkpoint/mask_digest.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "executor/checkpoint/crc32c.h"
#include "executor/checkpoint/read_blocks.h"
#include "model_specs/hub/safetensors.h"

namespace vramfit {

std::uint32_t mask_digest(const std::string& path) {
  Checkpoint masks = list_tensors(path);
  std::ranges::sort(masks.tensors, {}, &StoredTensor::name);
  std::vector<File> files;
  for (const std::string& file : masks.files) files.emplace_back(file, kMaskFile);
  std::uint32_t digest = 0;
  for (const StoredTensor& tensor : masks.tensors) {
    digest = crc32c(fmt::format("{} {} {}\n", tensor.name.size(), tensor.name, tensor.shape), digest);
    read_blocks(files[static_cast<std::size_t>(tensor.file)], tensor.offset, tensor.bytes.n,
                [&](std::int64_t /*done*/, std::span<char> block) { digest = crc32c(block, digest); });
  }
  return digest;
}

}  // namespace vramfit
