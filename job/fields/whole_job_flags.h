// A job as one types it again.
#pragma once

#include <string>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "job/stacks/stacks.h"

namespace vramfit {

/// The flags that make `job` on `cluster`: --stack with the name of the stack, and the fields that differ from what it
/// sets there. For this project's engine, and where no stack has the job's runtime with its modeling, --runtime in its
/// place, which is always printed, as a command without it may mean another one ("vramfit estimate" means the usual
/// library's, "vramfit plan" the engine's) and "vramfit run" takes no --stack.
std::string whole_job_flags(const Job& job, const Stack& stack, const Cluster& cluster);

/// The same for the stack that the job is of.
std::string whole_job_flags(const Job& job, const Cluster& cluster);

}  // namespace vramfit
