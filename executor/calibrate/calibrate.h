// `vramfit-train --calibrate FILE`: times the executor's own kernels, copies and collectives on this machine, for
// `vramfit calibrate`, which makes figures of them (docs/time-model.md).
#pragma once

#include <span>
#include <string>

namespace vramfit {

/// Reads `--calibrate FILE --gpus CLUSTER --seconds S [--threads N]`, measures for about S seconds on this rank's
/// device while the other ranks do the same, and writes vramfit/measurements@1 on rank 0. Throws InputError for flags,
/// for phantom GPUs, and for a GPU that isn't the cluster's; FaultError where there is none.
void calibrate_rank(std::span<const std::string> arguments);

}  // namespace vramfit
