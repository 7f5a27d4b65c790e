// AdamW with averages in blocks of 256 codes of one byte, as bitsandbytes' AdamW8bit keeps them (Dettmers et al.,
// arXiv:2110.02861). bitsandbytes leaves tensors of fewer than 4096 elements in fp32; here all are quantized, since a
// unit's states are one flat tensor (docs/optimizers.md).
#include <array>

#include "program/optimizers/block_states.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit {

namespace {

constexpr std::array kPytorch{OptimizerImplementation::fused, OptimizerImplementation::paged,
                              OptimizerImplementation::torchao};

constexpr Optimizer row() {
  Optimizer row = BlockAdamw<256, 1>::kRow;
  row.implementations = kFusedOrPaged;
  row.pytorch = kPytorch;
  row.pytorch_step = eager::adamw_8bit_step;
  return row;
}

}  // namespace

const Optimizer optimizers::adamw_8bit = row();

}  // namespace vramfit
