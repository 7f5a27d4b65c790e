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
std::string get_frozen_dtype(const Job& job);
void set_frozen_dtype(Job& job, std::string_view value);
/// "" without one, so that plan files and fingerprints from before there was any are what they were.
std::string get_quantization(const Job& job);
void set_quantization(Job& job, std::string_view value);

}  // namespace vramfit
