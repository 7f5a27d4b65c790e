#include "job/cluster/device.h"

#include "job/cluster/reduce_scratch.h"

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
  const ReduceScratch scratch = sum_over_all(elements, device);
  return {scratch.partials, scratch.counters};
}

}  // namespace vramfit
