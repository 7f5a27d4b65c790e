#include "job/fields/bucket_text.h"

#include <fmt/format.h>

#include "job/fields/field_text.h"

namespace vramfit {

std::string get_bucket(const Job& job) {
  return job.bucket_bytes == kBucketByHiddenSize ? "auto" : fmt::to_string(job.bucket_bytes);
}

void set_bucket(Job& job, std::string_view value) {
  job.bucket_bytes = value == "auto" ? kBucketByHiddenSize : whole_number(value, 1, kMostBucketBytes);
}

}  // namespace vramfit
