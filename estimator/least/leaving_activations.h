// Which segments keep what their backward passes read, and what of it leaves for host memory (--offload activations):
// found without a schedule.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "estimator/least/open_choices.h"
#include "estimator/least/saved_activations.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Whether a segment keeps what its backward reads; `unknown`: it may, or not.
enum class Kept { all, checkpointed, unknown };

/// Of each segment. `is_open`: which blocks are checkpointed isn't decided yet.
std::vector<Kept> kept_by(const Graph& graph, const Job& job, const std::vector<bool>& has_backward, bool is_open);

/// The policy by which blocks are checkpointed in part. None: full checkpointing, or none.
std::optional<std::size_t> policy_of(const Job& job);

inline const CheckpointedActivations& checkpointed_by(std::optional<std::size_t> policy,
                                                      const SavedActivations& saved) {
  return policy ? saved.selective.at(*policy) : saved.full;
}

/// At least the activations of each segment that are in host memory between its forward and its backward pass. What two
/// segments hold stays on the card.
std::vector<Bytes> leaving_activations(const std::vector<SavedActivations>& saved, const Graph& graph, const Job& job,
                                       const std::vector<bool>& has_backward, OpenChoices open);

}  // namespace vramfit
