// AdamW with averages in blocks of 256 codes of one byte, as bitsandbytes' AdamW8bit keeps them (Dettmers et al.,
// arXiv:2110.02861). bitsandbytes leaves tensors of fewer than 4096 elements in fp32; here all are quantized, since a
// unit's states are one flat tensor (docs/optimizers.md).
#include <array>

#include "program/optimizers/block_states.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

namespace {

using Holds = OptimizerState::Holds;

constexpr std::int64_t kBlock = 256;
constexpr std::array kStates{OptimizerState{.name = "exp_avg", .dtype = Dtype::u8},
                             OptimizerState{.name = "exp_avg_sq", .dtype = Dtype::u8},
                             OptimizerState{.name = "exp_avg_absmax", .covers = kBlock, .dtype = Dtype::f32},
                             OptimizerState{.name = "exp_avg_sq_absmax", .covers = kBlock, .dtype = Dtype::f32},
                             OptimizerState{.name = "step", .holds = Holds::updates}};

std::int64_t scratch_of(const UnitUpdate& update) {
  return update.device == DeviceKind::cpu ? 0 : BlockScratch{.elements = update.elements, .block = kBlock}.size();
}

Work work_of(const UnitUpdate& update) { return work_of_block_adamw(update, kBlock, 1); }

}  // namespace

const Optimizer optimizers::adamw_8bit{.states = kStates,
                                       .work = work_of,
                                       .block = kBlock,
                                       .scratch = scratch_of,
                                       .implementations = kFusedOnly,
                                       .pytorch = {},
                                       .pytorch_step = nullptr};

}  // namespace vramfit
