#include "cli/estimate/instead.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "job/fields/job_fields.h"
#include "job/stacks/job_defaults.h"
#include "job/stacks/pinned_offload.h"

namespace vramfit {
namespace {

/// Those that change no result: a Trainer's, DeepSpeed's and torchtune's.
Job without_choices_of_libraries(Job job) {
  const Job none;
  job.reentrant_checkpoints = none.reentrant_checkpoints;
  job.find_unused_parameters = none.find_unused_parameters;
  job.bucket_bytes = none.bucket_bytes;
  job.overlap_comm = none.overlap_comm;
  job.zero3_sizes = none.zero3_sizes;
  job.rotary_positions = none.rotary_positions;
  job.offload = pinned_offload(job.offload);
  if (job.kernels == KernelSource::liger) job.kernels = none.kernels;
  job.liger = none.liger;
  job.axolotl = none.axolotl;
  if (job.optimizer_implementation == OptimizerImplementation::deepspeed) {
    job.optimizer_implementation = none.optimizer_implementation;
  }
  return job;
}

/// How flags are to be changed for `to` in place of `from`.
void add_changes(Instead& instead, const Job& from, const Job& to) {
  for (const JobField& field : job_fields()) {
    const std::string value = field.get(to);
    if (value == field.get(from)) continue;
    if (value != field.get(unresolved_job())) {
      instead.flags += fmt::format(" {} {}", flag_of(field), value);
    } else {
      instead.without += fmt::format("{} {}", instead.without.empty() ? ", without" : " and", flag_of(field));
    }
  }
}

}  // namespace

Instead instead_on(JobFlags flags, const Stack& stack, const Job& job, const Cluster& cluster) {
  const std::vector<std::string> fixed = read_job_choice(flags, stack, cluster).fixed;
  Instead instead{.choice = {}, .flags = fmt::format("--stack {}", stack.name), .without = ""};
  for (const StackDefault& each : job_defaults(stack_of(job), job, cluster)) {
    const bool is_alike = each.field == "precision" || each.field == "checkpointing";
    if (!is_alike || std::ranges::find(fixed, each.field) != fixed.end()) continue;
    flags.imported.insert(flags.imported.begin(), {std::string(each.field), std::string(each.value)});  // others win
    instead.flags += fmt::format(" {} {}", flag_of(job_field_named(each.field)), each.value);
  }
  instead.choice = read_job_choice(flags, stack, cluster);
  if (stack.name == "vramfit") {
    Job job_there = without_choices_of_libraries(instead.choice.job);
    add_changes(instead, instead.choice.job, job_there);
    instead.choice.job = std::move(job_there);
  }
  return instead;
}

}  // namespace vramfit
