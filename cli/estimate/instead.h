// What was asked about one library, asked about another: the third line of estimates, and `--what-if stack=vramfit`.
#pragma once

#include <string>

#include "cli/flags/job_flags.h"
#include "job/cluster/cluster.h"
#include "job/stacks/stacks.h"

namespace vramfit {

struct Instead {
  JobChoice choice;
  /// "--stack vramfit --checkpointing full" and ", without --bucket-bytes": what was typed makes this choice with the
  /// former, in place of its own --stack, and without the latter.
  std::string flags, without;
};

/// What `flags` choose on `stack` in place of the one that `job` is of, whose precision and checkpointing by default
/// stay, as they decide which figures can be compared. For this project's engine without what a Trainer alone has a
/// choice of. Throws InputError where the flags contradict the stack.
Instead instead_on(JobFlags flags, const Stack& stack, const Job& job, const Cluster& cluster);

}  // namespace vramfit
