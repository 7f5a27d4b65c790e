// What is DeepSpeed's alone as text: whether it overlaps, and the sizes of its ZeRO-3, "auto" or
// "prefetch_bucket_size=N|auto,max_live_parameters=N".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "job/job.h"

namespace vramfit {

/// JobField (job/fields/job_fields.h) says what they return and throw; overlap is "on" or "off".
std::string get_overlap(const Job& job);
void set_overlap(Job& job, std::string_view value);

/// "" for DeepSpeed's defaults; otherwise what differs from them, in the order of Zero3Sizes. "default" is no size,
/// "auto" prefetch_bucket_size and param_persistence_threshold, which transformers' Trainer knows to fill in.
std::string get_zero3_sizes(const Job& job);
void set_zero3_sizes(Job& job, std::string_view value);

inline constexpr std::string_view kZero3SizesHelp =
    "Sizes of DeepSpeed's ZeRO-3 in elements, named as in its configuration but without stage3_ (prefetch_bucket_size, "
    "param_persistence_threshold, max_live_parameters, max_reuse_distance, sub_group_size); auto: the first two as the "
    "Trainer fills them in. Default: DeepSpeed's";

/// More than any model has, so that larger ones are the same; DeepSpeed takes any.
inline constexpr std::int64_t kMostZero3Size = std::int64_t{1} << 50;

/// In the order of Zero3Sizes.
std::vector<std::string_view> zero3_size_names();

/// One size by its name; `value` is a number, of which kMostZero3Size is the most that counts, or "auto". Throws
/// InputError.
void set_zero3_size(Zero3Sizes& sizes, std::string_view name, std::string_view value);

/// Whether the Trainer fills it in.
bool may_be_auto(std::string_view name);

}  // namespace vramfit
