// What training asks of the hardware at least, and what the hardware gives at most: model FLOPs utilization (MFU).
#pragma once

#include <string_view>

#include "estimator/cluster.h"
#include "estimator/tape.h"

namespace vramfit {

/// Matmul and attention FLOPs of one micro-batch on one rank, forward once and backward as far as something is trained:
/// an op whose input and whose weight both want a gradient counts twice its forward. Recomputation is not counted
/// (that would be hardware FLOPs), and a causal mask halves attention. Throws as make_tapes does.
double training_flops(const TapeInputs& inputs);

/// Dense FLOPs per second of a card whose matrix products run in `compute`; 0 where they aren't known (CPU ranks).
double peak_flops(const Card& card, Dtype compute);

/// The catalog's card that CUDA reports under this name; null when it knows none.
const Card* card_with_cuda_name(std::string_view name);

}  // namespace vramfit
