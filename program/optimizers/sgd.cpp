// Stochastic gradient descent with momentum as torch.optim.SGD computes it, without dampening: the weight decay is
// added to the gradient. Buffers begin at zero, from which the first update makes them the gradient, as PyTorch's does.
#include <array>

#include "program/optimizers/fp32_chunks.h"
#include "program/optimizers/optimizers.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit {

namespace {

constexpr std::array kStates{OptimizerState{"momentum_buffer"}};

/// One kernel, which reads the gradient and reads and writes parameters and buffers.
Work work_of_fused(const UnitUpdate& update) {
  const Bytes each = dtype_bytes(update.gradient) + 2 * dtype_bytes(update.storage) + 2 * dtype_bytes(update.state);
  return {.bytes = static_cast<double>((update.elements * each).n)};
}

Work work_of_sgd(const UnitUpdate& update) {
  return is_in_fp32_chunks(update) ? work_of_fp32_chunks(update, 1, work_of_fused, 0) : work_of_fused(update);
}

std::int64_t scratch_of_sgd(const UnitUpdate& update) {
  return is_in_fp32_chunks(update) ? fp32_chunks_scratch(update, 1) : 0;
}

}  // namespace

const Optimizer optimizers::sgd{.states = kStates,
                                .work = work_of_sgd,
                                .scratch = scratch_of_sgd,
                                .implementations = kFusedOnly,
                                .pytorch = kFusedOnly,
                                .pytorch_step = eager::sgd_step};

}  // namespace vramfit
