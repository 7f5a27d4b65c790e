// AdamW with averages in blocks of 256 FP8 numbers (e4m3), as torchao's AdamWFp8 keeps them
// (torchao/optim/subclass_fp8.py).
#include <array>

#include "program/optimizers/block_states.h"

namespace vramfit {

namespace {

constexpr std::int64_t kBlock = 256;

constexpr std::array kStates{OptimizerState{.name = "exp_avg", .dtype = Dtype::u8},
                             OptimizerState{.name = "exp_avg_sq", .dtype = Dtype::u8},
                             OptimizerState{.name = "exp_avg_scale", .covers = kBlock, .dtype = Dtype::f32},
                             OptimizerState{.name = "exp_avg_sq_scale", .covers = kBlock, .dtype = Dtype::f32},
                             OptimizerState{.name = "step", .holds = OptimizerState::Holds::updates}};

/// As with other codes, but that LibTorch's calls on CUDA (executor/optimizers/block_adamw_cuda.cpp) convert numbers
/// instead of looking them up; they move kFp32 bytes of an element beside gradients and parameters.
Work work_of_fp8_blocks(const UnitUpdate& update) {
  if (update.device == DeviceKind::cpu || wants_own_kernel(update)) return work_of_block_adamw(update, kBlock, 1);
  constexpr std::int64_t kFirst = 12, kOfChunk = 38;  // launches
  constexpr Bytes kFp32{232};
  const Bytes each = kFp32 + dtype_bytes(update.gradient) + 2 * dtype_bytes(update.storage);
  return {.launches = kFirst + ceil_div(update.elements, kBlockStatesChunk) * kOfChunk,
          .bytes = static_cast<double>((update.elements * each).n)};
}

constexpr Optimizer row() {
  Optimizer row = BlockAdamw<kBlock, 1>::kRow;
  row.states = kStates;
  row.work = work_of_fp8_blocks;
  return row;
}

}  // namespace

const Optimizer optimizers::adamw_fp8_blocks = row();

}  // namespace vramfit
