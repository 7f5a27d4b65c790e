// The fields --runtime and --modeling, which set the defaults of others.
#pragma once

#include <string_view>

#include "job/job.h"

namespace vramfit {

/// JobField (job/fields/job_fields.h) says what they throw.
void set_runtime(Job& job, std::string_view value);
void set_modeling(Job& job, std::string_view value);

}  // namespace vramfit
