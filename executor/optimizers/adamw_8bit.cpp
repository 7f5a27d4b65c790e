// AdamW with averages in blocks of 256 bytes, as bitsandbytes' kOptimizerStatic8bit2StateBlockwise computes it
// (csrc/kernels.cu): parameters are updated from the averages before these are rounded to codes.
#include "executor/optimizers/block_adamw_cuda.h"
#include "executor/optimizers/block_adamw_torch.h"

namespace vramfit {

namespace {

using First = DynamicCodes<7, true>;
using Second = DynamicCodes<7, false>;
constexpr std::int64_t kBlock = 256;

void on_cpu(OptimizerCall& call) { update_blocks<First, Second, kBlock>(call); }

void on_cuda(OptimizerCall& call) {
  static constexpr auto kTables = block_tables<First, Second>();
  update_blocks_on_cuda(call, {.tables = kTables,
                               .codes = First::kValues.size(),
                               .block = kBlock,
                               .zero_of_first = First::kZero,
                               .codes_per_byte = First::kPerByte});
}

}  // namespace

const OptimizerSteps optimizer_steps::adamw_8bit{.cpu = on_cpu, .cuda = on_cuda};

}  // namespace vramfit
