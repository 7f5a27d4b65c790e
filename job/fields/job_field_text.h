// Fields of a job whose text has more than one part: a mesh, a wrapping, a prefetch depth. Each can read what it
// writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "job/job.h"

namespace vramfit {

/// The most that N may be where a choice is for one layer of N.
inline constexpr std::int64_t kMostEvery = 4096;

/// JobField (job/fields/job_fields.h) says what a `get` returns and what a `set` throws.
std::string get_precision(const Job& job);
void set_precision(Job& job, std::string_view value);
std::string get_loss_scale(const Job& job);
void set_loss_scale(Job& job, std::string_view value);
std::string get_mesh(const Job& job);
void set_mesh(Job& job, std::string_view value);
std::string get_sharding(const Job& job);
void set_sharding(Job& job, std::string_view value);
std::string get_reshard(const Job& job);
void set_reshard(Job& job, std::string_view value);
std::string get_wrap(const Job& job);
void set_wrap(Job& job, std::string_view value);
std::string get_prefetch(const Job& job);
void set_prefetch(Job& job, std::string_view value);
std::string get_checkpointing(const Job& job);
void set_checkpointing(Job& job, std::string_view value);
std::string get_offload(const Job& job);
void set_offload(Job& job, std::string_view value);
std::string get_optimizer(const Job& job);
/// Throws NotModelled for preference training and the like, with the stack that has it.
void set_method(Job& job, std::string_view value);
void set_optimizer(Job& job, std::string_view value);
std::string get_loss(const Job& job);
void set_loss(Job& job, std::string_view value);
std::string get_label_smoothing(const Job& job);
void set_label_smoothing(Job& job, std::string_view value);
std::string get_z_loss(const Job& job);
void set_z_loss(Job& job, std::string_view value);
std::string get_ignore_index(const Job& job);
void set_ignore_index(Job& job, std::string_view value);
std::string get_allocator(const Job& job);
void set_allocator(Job& job, std::string_view value);
std::string get_gradient_mask(const Job& job);
void set_gradient_mask(Job& job, std::string_view value);
/// Bounds of --lora-alpha and --lora-dropout.
inline constexpr double kLeastAlpha = 1e-6, kMostAlpha = 1e6, kMostDropout = 0.99;
std::string get_lora_rank(const Job& job);
void set_lora_rank(Job& job, std::string_view value);
std::string get_lora_alpha(const Job& job);
void set_lora_alpha(Job& job, std::string_view value);
std::string get_lora_dropout(const Job& job);
void set_lora_dropout(Job& job, std::string_view value);
std::string get_lora_targets(const Job& job);
void set_lora_targets(Job& job, std::string_view value);
std::string get_rslora(const Job& job);
void set_rslora(Job& job, std::string_view value);

std::string get_dora(const Job& job);
void set_dora(Job& job, std::string_view value);
std::string get_freeze(const Job& job);
void set_freeze(Job& job, std::string_view value);

}  // namespace vramfit
