// The choices of a job that have no rules yet, under the names that are printed.
#pragma once

#include <string_view>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// Throws NotModelled("--offload params") for the first choice of `job` that can't be counted. Checks that need a graph
/// or a layout (family, wrapping) are made there.
void require_rules(const Job& job, const Cluster& cluster);

/// The same for what step_time and speed_of need, which is less: of PyTorch's runtimes, what is compiled or multiplies
/// in FP8 has times but no bytes (program/pytorch/compiled/compiled.h).
void require_time_rules(const Job& job, const Cluster& cluster);

/// Throws NotModelled("--modeling transformers"): a field's value, as the user would type it, and what is nearest to it
/// (program/nearest.h).
[[noreturn]] void refuse_field(const Job& job, std::string_view field);

}  // namespace vramfit
