// What a process takes on a card before it allocates anything.
#pragma once

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// CUDA's context and loaded kernels: PyTorch's runtimes load more of these than vramfit's own engine does.
inline Bytes context_of(Runtime runtime, const Card& card) {
  return runtime == Runtime::vramfit ? card.context : card.pytorch_context;
}

}  // namespace vramfit
