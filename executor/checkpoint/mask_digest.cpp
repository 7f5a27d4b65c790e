#include "executor/checkpoint/mask_digest.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "executor/checkpoint/crc32c.h"
#include "model_specs/hub/safetensors.h"

namespace vramfit {

std::uint32_t mask_digest(const std::string& path) {
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
  Checkpoint masks = list_tensors(path);
  std::ranges::sort(masks.tensors, {}, &StoredTensor::name);
  std::vector<File> files;
  for (const std::string& file : masks.files) files.emplace_back(file, kMaskFile);
  std::vector<char> block(static_cast<std::size_t>(kBlockBytes));
  std::uint32_t digest = 0;
  for (const StoredTensor& tensor : masks.tensors) {
    digest = crc32c(fmt::format("{} {} {}\n", tensor.name.size(), tensor.name, tensor.shape), digest);
    for (std::int64_t done = 0; done < tensor.bytes.n; done += kBlockBytes) {
      const std::int64_t count = std::min(kBlockBytes, tensor.bytes.n - done);
      const std::span<char> part = std::span(block).first(static_cast<std::size_t>(count));
      files[static_cast<std::size_t>(tensor.file)].read(tensor.offset + done, part);
      digest = crc32c(part, digest);
    }
  }
  return digest;
}

}  // namespace vramfit
