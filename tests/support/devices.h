#pragma once

#include "job/cluster/device.h"

namespace vramfit::testing {

inline const Device kCpu{.kind = DeviceKind::cpu, .name = "cpu"};
inline const Device kH100{.name = "H100-80GB", .compute_capability = 90, .sm_count = 132};

}  // namespace vramfit::testing
