// The facts of a run that its ranks must agree on.
#pragma once

#include <string>

#include "job/device.h"
#include "job/run_options.h"

namespace vramfit {

/// What all ranks must have in common: the plan, the shared flags (job/run_flags.h), the kind of device (it decides who
/// talks: Gloo or NCCL) and this program. A hash each, so that it can be shown.
std::string agreement(const std::string& plan_text, const RunOptions& options, DeviceKind device);

}  // namespace vramfit
