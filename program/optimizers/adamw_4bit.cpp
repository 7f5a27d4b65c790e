// AdamW with averages in blocks of 128 codes of half a byte, two in each byte, as torchao's AdamW4bit keeps them
// (torchao/optim/subclass_4bit.py).
#include <array>

#include "program/optimizers/block_states.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

namespace {

using Holds = OptimizerState::Holds;

constexpr std::int64_t kBlock = 128, kPerByte = 2;
constexpr std::array kStates{OptimizerState{.name = "exp_avg", .covers = kPerByte, .dtype = Dtype::u8},
                             OptimizerState{.name = "exp_avg_sq", .covers = kPerByte, .dtype = Dtype::u8},
                             OptimizerState{.name = "exp_avg_absmax", .covers = kBlock, .dtype = Dtype::f32},
                             OptimizerState{.name = "exp_avg_sq_absmax", .covers = kBlock, .dtype = Dtype::f32},
                             OptimizerState{.name = "step", .holds = Holds::updates}};

std::int64_t scratch_of(const UnitUpdate& update) {
  return update.device == DeviceKind::cpu ? 0 : BlockScratch{.elements = update.elements, .block = kBlock}.size();
}

Work work_of(const UnitUpdate& update) { return work_of_block_adamw(update, kBlock, kPerByte); }

}  // namespace

const Optimizer optimizers::adamw_4bit{.states = kStates,
                                       .work = work_of,
                                       .block = kBlock,
                                       .scratch = scratch_of,
                                       .implementations = kFusedOnly,
                                       .pytorch = {},
                                       .pytorch_step = nullptr};

}  // namespace vramfit
