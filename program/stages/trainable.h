// What --freeze leaves to train.
#pragma once

#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Parameters that `--freeze` leaves trainable, by index.
std::vector<bool> trainable_parameters(const Graph& graph, const Job& job);

/// Segments that backward runs through: those from the lowest with a trainable parameter on.
std::vector<bool> segments_with_backward(const Graph& graph, const Job& job);

}  // namespace vramfit
