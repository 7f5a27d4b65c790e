#include "job/device.h"

#include <algorithm>

namespace vramfit {

Bytes cublas_workspace(const Device& device) {
  if (device.kind != DeviceKind::cuda) return {};
  return device.compute_capability == 90 ? 32 * kMiB : 8320 * kKiB;
}

std::int64_t threads_an_sm(const Device& device) {
  const int capability = device.compute_capability;
  if (capability == 75) return 1024;
  return capability == 86 || capability == 89 || capability >= 120 ? 1536 : 2048;
}

SumScratch sum_scratch(std::int64_t elements, const Device& device) {
  constexpr std::int64_t kThreads = 512, kLeastValues = 16, kMostValues = 256;  // values: of a thread
  const std::int64_t values = ceil_div(elements, kThreads);
  if (values < kMostValues) return {};
  const std::int64_t blocks = device.sm_count * (threads_an_sm(device) / kThreads);
  const std::int64_t parts = std::max(std::min(blocks, ceil_div(values, kLeastValues)), ceil_div(values, kMostValues));
  if (parts <= 1) return {};
  return {parts * Bytes{4}, Bytes{4}};
}

}  // namespace vramfit
