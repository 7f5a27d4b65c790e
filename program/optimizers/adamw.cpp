// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019).
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

bool is_fused(const UnitUpdate& update) { return update.state == update.storage; }

/// Counting the step, and one kernel for all, which reads the gradient and reads and writes parameters and averages.
Work work_of_adamw(const UnitUpdate& update) {
  if (is_of_calls(update.form)) return work_of_adamw_calls(update);
  const bool is_at_once = is_fused(update) || update.device == DeviceKind::cpu || wants_own_kernel(update);
  return is_at_once ? work_of_adamw_at_once(update) : work_of_adamw_in_chunks(update);
}

std::int64_t scratch_of_adamw(const UnitUpdate& update) {
  if (is_of_calls(update.form)) return update.device == DeviceKind::cuda ? kAdamwFormNumbers : 0;
  return is_fused(update) ? 0 : adamw_scratch(update, update.elements);
}

}  // namespace

const Optimizer optimizers::adamw{.states = kStates,
                                  .work = work_of_adamw,
                                  .scratch = scratch_of_adamw,
                                  .temporaries = temporaries_of_adamw,
                                  .takes_other_states = true,
                                  .implementations = kForms,
                                  .pytorch = kPytorch,
                                  .pytorch_step = eager::adamw_step};

}  // namespace vramfit
