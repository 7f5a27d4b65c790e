// --calibration: figures of the GPU in use instead of those known for it.
#pragma once

#include <string>
#include <vector>

#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"
#include "model_specs/spec.h"

namespace CLI {
class App;
}

namespace vramfit {

/// The flag, whose values go to `files`.
void add_calibration_flag(CLI::App& command, std::vector<std::string>& files);

/// The figures known for the cluster's card, changed by `files` in their order: those of configs/efficiency's form
/// replace what they name; then runs (run.json) scale the speed of kernels so that their steps take what they took, of
/// several runs the median. `spec` is the model that is asked about; runs may have trained it or one of the catalog.
/// Throws InputError naming the file.
Efficiency efficiency_by(const std::vector<std::string>& files, const Cluster& cluster, const ModelSpec& spec);

}  // namespace vramfit
