#include "job/fields/whole_job_flags.h"

#include <span>

#include <fmt/format.h>

#include "job/fields/job_fields.h"
#include "job/stacks/job_defaults.h"

namespace vramfit {
namespace {

/// What `--stack` alone makes of a job like this one.
Job begun_on(const Stack& stack, const Job& job, const Cluster& cluster) {
  const std::span<const StackDefault> defaults = job_defaults(stack, job, cluster);
  Job begun = on_stack(unresolved_job(), defaults);
  if (defaults.empty()) begun.runtime = Runtime::pytorch;  // as for stacks that only a rehearsal answers
  return begun;
}

std::string followed_by(const std::string& flags, const std::string& more) {
  return more.empty() ? flags : flags + " " + more;
}

}  // namespace

std::string whole_job_flags(const Job& job, const Stack& stack, const Cluster& cluster) {
  const JobField& runtime = job_field_named("runtime");
  const std::string of_runtime = fmt::format("{} {}", flag_of(runtime), runtime.get(job));
  const Job begun = begun_on(stack, job, cluster);
  const bool is_of_stack = begun.runtime == job.runtime && begun.modeling == job.modeling;
  if (job.runtime == Runtime::vramfit || !is_of_stack) {
    Job base = unresolved_job();
    runtime.set(base, runtime.get(job));
    return followed_by(of_runtime, job_as_flags(job, base));
  }
  std::string named = fmt::format("--stack {}", stack.name);
  if (job.runtime == Runtime::pytorch_fsdp1) named = followed_by(named, of_runtime);  // beside FSDP2, which is usual
  return followed_by(named, job_as_flags(job, begun));
}

std::string whole_job_flags(const Job& job, const Cluster& cluster) {
  return whole_job_flags(job, stack_of(job), cluster);
}

}  // namespace vramfit
