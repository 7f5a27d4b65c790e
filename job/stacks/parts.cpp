#include "job/stacks/parts.h"

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

std::optional<Job> with_parts(const Job& job, const Cluster& cluster, std::span<const std::string> fixed) {
  if (job.sharding != "no-shard" || cluster.cards() == 1) return std::nullopt;
  const Stack& stack = stack_of(job);
  const Job copied = on_stack(unresolved_job(), defaults_of(stack, cluster, true));
  const Job parted = on_stack(unresolved_job(), defaults_of(stack, cluster));
  if (job.runtime != copied.runtime || job.runtime == parted.runtime) return std::nullopt;
  Job parts = job;
  parts.runtime = parted.runtime;
  parts.sharding = parted.sharding;
  parts.mesh = parted.mesh;
  parts.reshard = parted.reshard;
  if (!job.precision.name.empty()) {
    parts.precision = with_set_dtypes(precision_on(parts, job.precision.name), job);
  }
  for (const JobField& field : job_fields()) {
    if (field.name == "runtime" || field.name == "sharding") continue;
    const std::string value = field.get(job), usual = field.get(parted);
    if (std::ranges::find(fixed, field.name) != fixed.end()) {
      if (field.get(parts) != value) field.set(parts, value);
    } else if (value == field.get(copied) && value != usual) {
      field.set(parts, usual);
    }
  }
  return parts;
}

}  // namespace vramfit
