#include "job/fields/whole_job_flags.h"

#include <fmt/format.h>

#include "job/fields/job_fields.h"

namespace vramfit {

std::string whole_job_flags(const Job& job) {
  const Job base = unresolved_job();
  const JobField& runtime = job_field_named("runtime");
  const std::string flags = job_as_flags(job, base);
  if (runtime.get(job) != runtime.get(base)) return flags;
  return fmt::format("{} {}{}{}", flag_of(runtime), runtime.get(job), flags.empty() ? "" : " ", flags);
}

}  // namespace vramfit
