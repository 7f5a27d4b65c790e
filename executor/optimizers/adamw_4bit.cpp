// AdamW with averages in blocks of 128 half bytes, as torchao's AdamW4bit keeps them (torchao/optim/subclass_4bit.py).
#include "executor/optimizers/adamw_kernels.h"
#include "executor/optimizers/block_adamw_cuda.h"
#include "executor/optimizers/block_adamw_torch.h"

namespace vramfit {

namespace {

using First = DynamicCodes<3, true>;
using Second = SixteenthCodes;
constexpr std::int64_t kBlock = 128;

}  // namespace

const OptimizerSteps optimizer_steps::adamw_4bit{.cpu = update_blocks<First, Second, kBlock>,
                                                 .cuda = update_blocks_on_cuda<First, Second, kBlock>,
                                                 .own_cuda = update_coded_by_kernel<cuda::StateCodes::four_bits>};

}  // namespace vramfit
