// Figures of the machine in use, from steps that were run there: run.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"
#include "model_specs/spec.h"
#include "program/files/run_record.h"

namespace vramfit {

/// Median seconds of the steps after the first, which also makes kernels ready.
double measured_step_seconds(const RunRecord& run);

/// The step_share, or that of a card alone, with which the step that was run is predicted to take what it took, as
/// scripts/fit-efficiency finds those of published steps; the nearest one, where launches and collectives alone take
/// longer. Throws InputError "FILE: ..." for a run that says nothing of this: of another card, on phantom GPUs, of
/// another model than `spec`, or of one step alone; NotModelled for a job without rules.
double step_share_of_run(const RunRecord& run, const ModelSpec& spec, const Cluster& cluster,
                         const Efficiency& efficiency, const std::string& file);

}  // namespace vramfit
