// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019).
#include <array>

#include "program/optimizers/adamw_forms.h"
#include "program/optimizers/block_states.h"
#include "program/optimizers/fp32_chunks.h"
#include "program/optimizers/optimizers.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit {

namespace {

using Holds = OptimizerState::Holds;

constexpr std::array kStates{OptimizerState{"exp_avg"}, OptimizerState{"exp_avg_sq"},
                             OptimizerState{"step", Holds::updates}};
constexpr std::int64_t kAverages = 2;
constexpr std::array kForms{OptimizerImplementation::fused, OptimizerImplementation::foreach,
                            OptimizerImplementation::loop, OptimizerImplementation::paged};
constexpr std::array kPytorch{OptimizerImplementation::fused, OptimizerImplementation::foreach,
                              OptimizerImplementation::loop, OptimizerImplementation::paged,
                              OptimizerImplementation::deepspeed};

bool is_in_chunks(const UnitUpdate& update) { return is_in_fp32_chunks(update) && !wants_own_kernel(update); }

/// Counting the step, and one kernel for all, which reads the gradient and reads and writes parameters and averages.
Work work_of_adamw(const UnitUpdate& update) {
  if (is_of_calls(update.form)) return work_of_adamw_calls(update);
  constexpr std::int64_t kCounting = 1;
  return is_in_chunks(update) ? work_of_fp32_chunks(update, kAverages, work_of_adamw_at_once, kCounting)
                              : work_of_adamw_at_once(update);
}

std::int64_t scratch_of_adamw(const UnitUpdate& update) {
  if (is_of_calls(update.form)) return update.device == DeviceKind::cuda ? kAdamwFormNumbers : 0;
  return is_in_chunks(update) ? fp32_chunks_scratch(update, kAverages) : 0;
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
