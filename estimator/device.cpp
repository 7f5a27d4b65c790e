#include "estimator/device.h"

namespace vramfit {

Bytes cublas_workspace(const Device& device) {
  if (device.kind != DeviceKind::cuda) return {};
  return device.compute_capability == 90 ? 32 * kMiB : 8320 * kKiB;
}

}  // namespace vramfit
