#include "phantom/cublaslt/attributes.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace vramfit::phantom::cublaslt {
namespace {

struct Descriptors {
  std::mutex mutex;
  std::uint64_t last = 0;
  std::map<std::pair<std::uint64_t, int>, std::vector<std::byte>> attributes;
};

// Never destroyed: libraries give descriptors back while the process ends.
Descriptors& descriptors() {
  static auto* all = new Descriptors;
  return *all;
}

}  // namespace

std::uint64_t new_descriptor() {
  const std::lock_guard lock(descriptors().mutex);
  return ++descriptors().last;
}

void forget_descriptor(std::uint64_t descriptor) {
  const std::lock_guard lock(descriptors().mutex);
  auto& all = descriptors().attributes;
  all.erase(all.lower_bound({descriptor, INT32_MIN}), all.upper_bound({descriptor, INT32_MAX}));
}

cublasStatus_t set_attribute(std::uint64_t descriptor, int attribute, const void* buffer, std::size_t bytes) {
  if (buffer == nullptr || bytes == 0) return CUBLAS_STATUS_INVALID_VALUE;
  const auto* from = static_cast<const std::byte*>(buffer);
  const std::lock_guard lock(descriptors().mutex);
  descriptors().attributes[{descriptor, attribute}].assign(from, from + bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get_attribute(std::uint64_t descriptor, int attribute, void* buffer, std::size_t bytes,
                             std::size_t* written, std::uint64_t fallback) {
  if (bytes == 0 ? written == nullptr : buffer == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const std::lock_guard lock(descriptors().mutex);
  const auto found = descriptors().attributes.find({descriptor, attribute});
  if (found == descriptors().attributes.end()) {
    if (written != nullptr) *written = bytes == 0 ? sizeof fallback : bytes;
    if (bytes == 0) return CUBLAS_STATUS_SUCCESS;
    std::memset(buffer, 0, bytes);
    std::memcpy(buffer, &fallback, std::min(bytes, sizeof fallback));  // little-endian
    return CUBLAS_STATUS_SUCCESS;
  }
  if (written != nullptr) *written = found->second.size();
  if (bytes == 0) return CUBLAS_STATUS_SUCCESS;
  if (bytes != found->second.size()) return CUBLAS_STATUS_INVALID_VALUE;
  std::ranges::copy(found->second, static_cast<std::byte*>(buffer));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace vramfit::phantom::cublaslt
