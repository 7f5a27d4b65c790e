// A job moved to another way in which its library trains: parts of a model in place of copies, another precision.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// The job with a part of the model on each GPU where it has a copy on each (FSDP2 in place of DDP), and with what its
/// library sets by default there. Fields of `fixed`, which a person set, stay, but for the sharding and the runtime.
/// None for other jobs, and where the library has no runtime with parts.
std::optional<Job> with_parts(const Job& job, const Cluster& cluster, std::span<const std::string> fixed);

/// `usual`, a precision of the job's library, with the dtypes in which the job's own precision differs from what the
/// library has by its name: a person set these.
Precision with_set_dtypes(Precision usual, const Job& job);

}  // namespace vramfit
