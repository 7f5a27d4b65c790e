// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019).
#include <algorithm>
#include <array>

#include "program/optimizers/adamw_forms.h"
#include "program/optimizers/block_states.h"
#include "program/optimizers/optimizers.h"
#include "program/pytorch/optimizers.h"

namespace vramfit {

namespace {

using Holds = OptimizerState::Holds;

constexpr std::array kStates{OptimizerState{"exp_avg"}, OptimizerState{"exp_avg_sq"},
                             OptimizerState{"step", Holds::updates}};
constexpr std::array kForms{OptimizerImplementation::fused, OptimizerImplementation::foreach,
                            OptimizerImplementation::loop, OptimizerImplementation::paged};
constexpr std::array kPytorch{OptimizerImplementation::fused, OptimizerImplementation::foreach,
                              OptimizerImplementation::loop, OptimizerImplementation::paged,
                              OptimizerImplementation::deepspeed};

bool is_fused(const UnitUpdate& update) { return update.state == update.storage && update.gradient == update.storage; }

/// Whether LibTorch's fused kernel updates one chunk after the other, whose gradients are made fp32 in the scratch.
bool is_fused_in_chunks(const UnitUpdate& update) {
  const bool is_wide = update.state == Dtype::f32 && update.storage == Dtype::f32 && update.gradient != Dtype::f32;
  return is_wide && update.device == DeviceKind::cuda && !wants_own_kernel(update);
}

Work work_of_fused_chunks(const UnitUpdate& update) {
  Work work = work_of_adamw_at_once(update);  // counting, too
  work.launches = 1 + 2 * ceil_div(update.elements, kBlockStatesChunk);
  work.bytes += static_cast<double>((update.elements * (2 * dtype_bytes(Dtype::f32))).n);
  return work;
}

/// Counting the step, and one kernel for all, which reads the gradient and reads and writes parameters and averages.
Work work_of_adamw(const UnitUpdate& update) {
  if (is_of_calls(update.form)) return work_of_adamw_calls(update);
  if (is_fused_in_chunks(update)) return work_of_fused_chunks(update);
  const bool is_at_once = is_fused(update) || update.device == DeviceKind::cpu || wants_own_kernel(update);
  return is_at_once ? work_of_adamw_at_once(update) : work_of_adamw_in_chunks(update);
}

std::int64_t scratch_of_adamw(const UnitUpdate& update) {
  if (is_of_calls(update.form)) return update.device == DeviceKind::cuda ? kAdamwFormNumbers : 0;
  if (is_fused_in_chunks(update)) return std::min(update.elements, kBlockStatesChunk);
  return is_fused(update) ? 0 : adamw_scratch(update, update.elements);
}

}  // namespace

const Optimizer optimizers::adamw{.states = kStates,
                                  .work = work_of_adamw,
                                  .scratch = scratch_of_adamw,
                                  .temporaries = temporaries_of_adamw,
                                  .takes_other_states = true,
                                  .takes_other_gradients = true,
                                  .implementations = kForms,
                                  .pytorch = kPytorch,
                                  .pytorch_step = eager::adamw_step};

}  // namespace vramfit
