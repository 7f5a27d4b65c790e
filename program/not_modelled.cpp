#include "program/not_modelled.h"

#include <fmt/format.h>

#include "base/error.h"
#include "job/allocator/allocator_settings.h"
#include "job/fields/job_fields.h"
#include "job/sharding/sharding.h"
#include "job/stacks/stacks.h"
#include "program/nearest.h"
#include "program/pytorch/compiled/compiled.h"
#include "program/runtimes/runtimes.h"

namespace vramfit {

void refuse_field(const Job& job, std::string_view field) {
  const JobField& row = job_field_named(field);
  throw NotModelled(fmt::format("{} {}{}", flag_of(row), row.get(job), nearest_text(job, field)));
}

void require_rules(const Job& job, const Cluster& cluster) {
  require_time_rules(job, cluster);
  if (eager::is_timed_alone(job)) {
    throw NotModelled(fmt::format("memory of {} with --runtime {} ({} is)",
                                  job.compile ? "--compile on" : "--precision fp8", job_field_named("runtime").get(job),
                                  job.compile ? "--compile off" : "--precision bf16-mixed"));
  }
}

void require_time_rules(const Job& asked, const Cluster& cluster) {
  const Job job = eager::eager_form(asked);
  const bool is_accelerates_fsdp = is_fsdp(job.runtime) && uses_accelerate(job);
  const bool may_offload = job.runtime == Runtime::vramfit || job.runtime == Runtime::deepspeed ||
                           is_accelerates_fsdp || job.modeling == Modeling::torchtune;
  if (!may_offload && !job.offload.empty()) refuse_field(job, "offload");
  if (sharding_named(job.sharding).of_deepspeed && job.runtime != Runtime::deepspeed) {
    const Stack& other = with_deepspeed(stack_of(asked));
    throw NotModelled(fmt::format("--sharding {} with --runtime {} (--stack {} has it)", job.sharding,
                                  job_field_named("runtime").get(job),
                                  &other == &stack_of(asked) ? "deepspeed" : other.name));
  }
  // No library has a choice of that apart from its precision's.
  if (job.runtime != Runtime::vramfit && !job.precision.name.empty() &&
      job.precision.compute != precision_on(job, job.precision.name).compute) {
    refuse_field(job, "compute_dtype");
  }
  for (const std::string_view name : {"gradient_dtype", "master_dtype"}) {
    const JobField& field = job_field_named(name);
    if (job.runtime == Runtime::vramfit || field.get(job).empty()) continue;
    throw NotModelled(fmt::format("{} {} with --runtime {} (--stack vramfit has it)", flag_of(field), field.get(job),
                                  job_field_named("runtime").get(job)));
  }
  if (asked.compile && (asked.kernels == KernelSource::liger || asked.axolotl.any())) {
    throw NotModelled(
        fmt::format("--compile on with --kernels {} (either alone is)", job_field_named("kernels").get(asked)));
  }
  if (allocator_settings(job.allocator).malloc_async) refuse_field(job, "allocator");
  const bool is_own_allocator = is_arena(job.allocator) || puts_gradients_first(job.allocator);
  if (is_own_allocator && job.runtime != Runtime::vramfit) refuse_field(job, "allocator");
  const bool is_torchaos = asked.runtime == Runtime::pytorch_fsdp2 && is_torchtitan(asked);
  if (wants_fp8(asked.precision) && asked.runtime != Runtime::vramfit && !is_torchaos) {
    refuse_field(asked, "precision");
  }
  runtime_row(job.runtime).require_rules(job, cluster);
}

}  // namespace vramfit
