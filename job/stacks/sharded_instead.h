// A job moved to another way in which its library trains: sharded instead of DDP, another precision.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// A DDP job with FSDP2 in its place, and with what its library sets by default there. Fields of `fixed`, which a
/// person set, stay, except for the sharding and the runtime. None for other jobs, and where the library's DDP and its
/// sharding are one runtime, or it has no sharding.
std::optional<Job> sharded_instead(const Job& job, const Cluster& cluster, std::span<const std::string> fixed);

/// `usual`, a precision of the job's library, with the dtypes in which the job's own precision differs from what the
/// library has by its name: a person set these.
Precision with_set_dtypes(Precision usual, const Job& job);

}  // namespace vramfit
