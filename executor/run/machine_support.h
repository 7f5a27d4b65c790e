// Which dtypes this machine computes and sums in, as its libraries report; see job/cluster/precision_support.h.
#pragma once

#include <string>

#include "job/cluster/cluster.h"
#include "job/cluster/device.h"
#include "job/job.h"

namespace vramfit {

/// LibTorch, NCCL, the CPU and each card, one a line, with what they do in fp32, bf16, fp16 and FP8.
std::string machine_support();

/// What the planned job will meet on the device that was opened, which may be another than the plan's: throws
/// InputError, naming what to use instead, for a precision that the card can't compute or NCCL can't sum; else returns
/// what a person should know, a line each, "" for nothing.
std::string check_machine(const Job& job, const Cluster& planned, const Device& device);

}  // namespace vramfit
