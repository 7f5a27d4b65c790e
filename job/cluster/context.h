// What a process takes on a card before it allocates anything.
#pragma once

#include <string_view>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// CUDA's context and loaded kernels: PyTorch's runtimes load more of these than vramfit's own engine does.
inline Bytes context_of(Runtime runtime, const Card& card) {
  return runtime == Runtime::vramfit ? card.context : card.pytorch_context;
}

/// The words of a card whose contexts were measured, for the engine and for PyTorch's runtimes (Card::outside_origin).
inline constexpr std::string_view kMeasured = "measured on such a card";
inline bool is_context_measured(const Card& card) { return card.outside_origin == kMeasured; }

}  // namespace vramfit
