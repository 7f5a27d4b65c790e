// AdamW with averages in blocks of 128 half bytes, as torchao's AdamW4bit keeps them (torchao/optim/subclass_4bit.py).
#include "executor/optimizers/block_adamw_cuda.h"
#include "executor/optimizers/block_adamw_torch.h"

namespace vramfit {

namespace {

using First = DynamicCodes<3, true>;
using Second = SixteenthCodes;
constexpr std::int64_t kBlock = 128;

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

const OptimizerSteps optimizer_steps::adamw_4bit{.cpu = on_cpu, .cuda = on_cuda};

}  // namespace vramfit
