// AdamW with averages in blocks of 256 bytes, as bitsandbytes' kOptimizerStatic8bit2StateBlockwise computes it
// (csrc/kernels.cu): parameters are updated from the averages before these are rounded to codes.
#include "executor/optimizers/adamw_kernels.h"
#include "executor/optimizers/block_adamw_cuda.h"
#include "executor/optimizers/block_adamw_torch.h"

namespace vramfit {

namespace {

using First = DynamicCodes<7, true>;
using Second = DynamicCodes<7, false>;
constexpr std::int64_t kBlock = 256;

}  // namespace

const OptimizerSteps optimizer_steps::adamw_8bit{.cpu = update_blocks<First, Second, kBlock>,
                                                 .cuda = update_blocks_on_cuda<First, Second, kBlock>,
                                                 .own_cuda = update_coded_by_kernel<cuda::StateCodes::eight_bits>};

}  // namespace vramfit
