// AdamW with averages in blocks of 128 codes of half a byte, two in each byte, as torchao's AdamW4bit keeps them
// (torchao/optim/subclass_4bit.py).
#include <array>

#include "program/optimizers/block_states.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit {

namespace {

constexpr std::array kPytorch{OptimizerImplementation::torchao};

constexpr Optimizer row() {
  Optimizer row = BlockAdamw<128, 2>::kRow;
  row.pytorch = kPytorch;
  row.pytorch_step = eager::adamw_4bit_step;
  return row;
}

}  // namespace

const Optimizer optimizers::adamw_4bit = row();

}  // namespace vramfit
