// What a rank keeps in host memory instead of on its card (--offload, paged states), and which jobs can
// (docs/offload.md).
#pragma once

#include <cstdint>

#include "job/job.h"

namespace vramfit {

/// States: of the optimizer, with the trained parameters that the CPU updates. Gradients, with the states: they leave
/// the card as soon as they are reduced. Parameters, with both: shards come to the card for each gather. Activations:
/// what blocks keep for their backward passes leaves after each one's forward pass, of the first block and every
/// `every`-th after it. Paged states (`--optimizer
/// NAME:paged`): in managed memory, which the driver moves to the card for an update. What isn't pinned is pageable:
/// DeepSpeed's `pin_memory: false` of offload_optimizer (states) and of offload_param (parameters).
struct Offload {
  bool states = false, gradients = false, parameters = false, activations = false, paged_states = false;
  bool pins_states = true, pins_parameters = true;
  std::int64_t every = 1;
};

/// Of a job whose choices are modelled.
Offload offload_of(const Job& job);

/// Whether one tensor of a layer leaves with its activations: of smaller ones, a copy would take longer than their
/// memory is worth.
inline bool is_worth_a_copy(Bytes bytes, Dtype dtype) {
  constexpr std::int64_t kLeastElements = 4096;
  return bytes.n / dtype_bytes(dtype).n >= kLeastElements;
}

/// Throws NotModelled for kinds without rules, and for choices that don't go with the job's kind.
void require_offload(const Job& job);

}  // namespace vramfit
