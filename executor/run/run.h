// A rank's run from plan.json to run.json.
#pragma once

#include "job/cluster/device.h"
#include "job/run/run_options.h"

namespace vramfit {

/// Runs this process's rank (from the environment). Rank 0 prints progress to stderr and writes run.json, also when it
/// runs out of memory; OutOfMemory is then rethrown. Returns what it ran on.
DeviceKind run_rank(const RunOptions& options);

}  // namespace vramfit
