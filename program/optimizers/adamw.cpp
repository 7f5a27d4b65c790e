// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019).
#include <array>

#include "program/optimizers/optimizers.h"
#include "program/pytorch/optimizers.h"

namespace vramfit {

namespace {

using Holds = OptimizerState::Holds;

constexpr std::array kStates{OptimizerState{"exp_avg"}, OptimizerState{"exp_avg_sq"},
                             OptimizerState{"step", Holds::updates}};
constexpr std::array kPytorch{OptimizerImplementation::fused, OptimizerImplementation::foreach};

/// Counting the step, and one kernel for all, which reads the gradient and reads and writes parameters and averages.
Work work_of_adamw(const UnitUpdate& update) {
  const Bytes each = dtype_bytes(update.gradient) + 2 * dtype_bytes(update.storage) + 4 * dtype_bytes(update.state);
  return {.launches = 2, .bytes = static_cast<double>((update.elements * each).n)};
}

}  // namespace

const Optimizer optimizers::adamw{.states = kStates,
                                  .work = work_of_adamw,
                                  .implementations = kFusedOnly,
                                  .pytorch = kPytorch,
                                  .pytorch_step = eager::adamw_step};

}  // namespace vramfit
