// The facts of a run that its ranks must agree on.
#pragma once

#include <string>

#include "job/cluster/device.h"
#include "job/run/run_options.h"

namespace vramfit {

struct AgreedFacts {
  std::string plan_text;
  const RunOptions& options;  // of which the shared flags count (job/run/run_flags.h)
  DeviceKind device;          // decides who talks: Gloo or NCCL
  std::string fingerprint;    // of the program that the rank is about to run (program/readers/fingerprint.h)
};

/// What all ranks must have in common, besides these facts the build of this executable. A hash each, so that it can be
/// shown.
std::string agreement(const AgreedFacts& facts);

}  // namespace vramfit
