// AdamW with averages in blocks of 256 FP8 numbers (e4m3), as torchao's AdamWFp8 keeps them
// (torchao/optim/subclass_fp8.py).
#include "executor/optimizers/adamw_kernels.h"
#include "executor/optimizers/block_adamw_cuda.h"
#include "executor/optimizers/block_adamw_torch.h"

namespace vramfit {

namespace {

constexpr std::int64_t kBlock = 256;

void update_on_cuda(OptimizerCall& call) {
  update_blocks_on_cuda(call, {.tables = {}, .block = kBlock, .is_e4m3 = true});
}

}  // namespace

const OptimizerSteps optimizer_steps::adamw_fp8_blocks{.cpu = update_blocks<E4m3Codes<true>, E4m3Codes<false>, kBlock>,
                                                       .cuda = update_on_cuda,
                                                       .own_cuda = update_coded_by_kernel<cuda::StateCodes::e4m3>};

}  // namespace vramfit
