#include "job/stacks/sharded_instead.h"

#include <algorithm>

#include "job/fields/job_fields.h"
#include "job/stacks/stacks.h"

namespace vramfit {

Precision with_set_dtypes(Precision usual, const Job& job) {
  const Precision& present = job.precision;
  const Precision by_name = present.name.empty() ? unresolved_job().precision : precision_on(job, present.name);
  for (Dtype Precision::*const dtype : {&Precision::storage, &Precision::compute, &Precision::reduce,
                                        &Precision::buffer, &Precision::output, &Precision::state}) {
    if (present.*dtype != by_name.*dtype) usual.*dtype = present.*dtype;
  }
  return usual;
}

std::optional<Job> sharded_instead(const Job& job, const Cluster& cluster, std::span<const std::string> fixed) {
  if (job.sharding != "no-shard" || cluster.cards() == 1) return std::nullopt;
  const Stack& stack = stack_of(job);
  const Job with_ddp = on_stack(unresolved_job(), defaults_of(stack, cluster, true));
  const Job with_fsdp = on_stack(unresolved_job(), defaults_of(stack, cluster));
  if (job.runtime != with_ddp.runtime || job.runtime == with_fsdp.runtime) return std::nullopt;
  Job sharded = job;
  sharded.runtime = with_fsdp.runtime;
  sharded.sharding = with_fsdp.sharding;
  sharded.mesh = with_fsdp.mesh;
  sharded.reshard = with_fsdp.reshard;
  if (!job.precision.name.empty()) {
    sharded.precision = with_set_dtypes(precision_on(sharded, job.precision.name), job);
  }
  for (const JobField& field : job_fields()) {
    if (field.name == "runtime" || field.name == "sharding") continue;
    const std::string value = field.get(job), usual = field.get(with_fsdp);
    if (std::ranges::find(fixed, field.name) != fixed.end()) {
      if (field.get(sharded) != value) field.set(sharded, value);
    } else if (value == field.get(with_ddp) && value != usual) {
      field.set(sharded, usual);
    }
  }
  return sharded;
}

}  // namespace vramfit
