// Which of a stack's defaults a job begins with.
#pragma once

#include <span>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "job/stacks/stacks.h"

namespace vramfit {

/// Those for FSDP1 where the job's runtime is that and the stack has it; else by the number of cards, where --sharding
/// no-shard means copies. Empty where the stack has no rules.
inline std::span<const StackDefault> job_defaults(const Stack& stack, const Job& job, const Cluster& cluster) {
  if (job.runtime == Runtime::pytorch_fsdp1 && !stack.with_fsdp1.empty()) return stack.with_fsdp1;
  return defaults_of(stack, cluster, job.sharding == "no-shard");
}

}  // namespace vramfit
