// What is nearest to a choice without rules and has some, as one table: a refusal names it.
#pragma once

#include <string>
#include <string_view>

#include "job/job.h"

namespace vramfit {

/// " (--optimizer adamw is)": for the value that `job` has in a field; "" where nothing is near.
std::string nearest_text(const Job& job, std::string_view field);

}  // namespace vramfit
