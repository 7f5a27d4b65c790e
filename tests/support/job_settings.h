// Jobs as tests write them: by the names and values of their fields.
#pragma once

#include <utility>
#include <vector>

#include "job/fields/job_fields.h"

namespace vramfit::testing {

using Settings = std::vector<std::pair<const char*, const char*>>;

/// Not resolved.
inline Job job_with(const Settings& settings) {
  Job job = unresolved_job();
  for (const auto& [field, value] : settings) set_job_field(job, job_field_named(field), value, field);
  return job;
}

}  // namespace vramfit::testing
