// Types that --storage-dtype and its like take, and formats of --quantization.
#pragma once

#include <string>
#include <string_view>

#include "job/job.h"
#include "model_specs/dtype.h"

namespace vramfit {

/// Throws InputError for a type that nothing is trained in, with what FP8 is for.
Dtype trained_dtype(std::string_view value);

/// JobField (job/fields/job_fields.h) says what they return and throw.
std::string get_master_dtype(const Job& job);
void set_master_dtype(Job& job, std::string_view value);
std::string get_gradient_dtype(const Job& job);
void set_gradient_dtype(Job& job, std::string_view value);
/// Whether gradients of the layers' trained matrices are kept as e4m3 numbers with scales.
inline bool keeps_fp8_gradients(const Job& job) { return job.gradient_dtype == Dtype::f8_e4m3; }
/// Of gradients as they add up, but for those that are kept in FP8: what --gradient-dtype says, else the dtype of
/// --storage-dtype.
inline Dtype kept_gradient_dtype(const Job& job) {
  return keeps_fp8_gradients(job) ? job.precision.storage : job.gradient_dtype.value_or(job.precision.storage);
}
std::string get_frozen_dtype(const Job& job);
void set_frozen_dtype(Job& job, std::string_view value);
/// "" without one, so that plan files and fingerprints from before there was any are what they were.
std::string get_quantization(const Job& job);
void set_quantization(Job& job, std::string_view value);

}  // namespace vramfit
