// What a person set and what changes nothing where the job runs: a script may have one command line for several
// clusters, so that it is said, not refused.
#pragma once

#include <string>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/spec.h"
#include "program/run_effects.h"

namespace vramfit {

/// "--reshard always changes nothing: on one GPU nothing is sharded": of the fields `set` of a resolved job that has
/// rules, those without which the program is the same. Fields that change numbers alone, as the loss scale, aren't
/// among them.
std::vector<std::string> void_choices(const ModelSpec& spec, const Job& job, const std::vector<std::string>& set,
                                      const Cluster& cluster, const RunEffects& run);

}  // namespace vramfit
