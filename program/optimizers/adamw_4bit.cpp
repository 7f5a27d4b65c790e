// AdamW with averages in blocks of 128 codes of half a byte, two in each byte, as torchao's AdamW4bit keeps them
// (torchao/optim/subclass_4bit.py).
#include "program/optimizers/block_states.h"

namespace vramfit {

const Optimizer optimizers::adamw_4bit = BlockAdamw<128, 2>::kRow;

}  // namespace vramfit
