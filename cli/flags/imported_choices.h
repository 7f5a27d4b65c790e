// Choices of one library's files where the job is for another.
#pragma once

#include <optional>
#include <string>

#include "job/job.h"

namespace vramfit {

/// The choice `value` of `field` as the library of `there` has it: without page-locking's opposite, which only
/// DeepSpeed has. None where it is a choice that this library hasn't, and that changes no result.
std::optional<std::string> choice_on(const std::string& field, const std::string& value, const Job& there);

}  // namespace vramfit
