// AdamW that rounds bf16 parameters stochastically: up or down with the odds of where the number lies between the two,
// so that updates too small for one rounding are kept on average (Zamirai et al., "Revisiting BFloat16 Training",
// arXiv:2010.06192; torchao's bf16_stochastic_round).
#include <array>

#include "program/optimizers/block_states.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

namespace {

using Holds = OptimizerState::Holds;

constexpr std::array kStates{OptimizerState{"exp_avg"}, OptimizerState{"exp_avg_sq"},
                             OptimizerState{"step", Holds::updates}};

Work work_of(const UnitUpdate& update) {
  if (update.device == DeviceKind::cpu || wants_own_kernel(update)) {
    Work work = work_of_adamw_at_once(update);
    work.launches = wants_own_kernel(update) ? 1 + update.parameters : 1;  // counting, and a kernel for each
    return work;
  }
  // Beside the update, a word of 8 bytes for each element: made, mixed and added by 18 calls.
  constexpr std::int64_t kOfWords = 18;
  constexpr double kWordBytes = 260;
  Work work = work_of_adamw_in_chunks(update);
  work.launches += ceil_div(update.elements, kBlockStatesChunk) * kOfWords;
  work.bytes += kWordBytes * static_cast<double>(update.elements);
  return work;
}

std::int64_t scratch_of(const UnitUpdate& update) { return adamw_scratch(update, update.elements, kRowsWithWords); }

}  // namespace

const Optimizer optimizers::adamw_stochastic{.states = kStates,
                                             .work = work_of,
                                             .scratch = scratch_of,
                                             .takes_other_states = true,
                                             .rounds_randomly = true,
                                             .implementations = kFusedOnly,
                                             .pytorch = {},
                                             .pytorch_step = nullptr};

}  // namespace vramfit
