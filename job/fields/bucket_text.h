// The bucket of gradients as text: bytes, or "auto".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "job/job.h"

namespace vramfit {

inline constexpr std::int64_t kMostBucketBytes = std::int64_t{1} << 40;

/// JobField (job/fields/job_fields.h) says what they return and throw.
std::string get_bucket(const Job& job);
void set_bucket(Job& job, std::string_view value);

}  // namespace vramfit
