// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675, algorithm 2).
#include <array>

#include "program/optimizers/fp32_chunks.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

namespace {

constexpr std::array kStates{OptimizerState{"exp_avg"}};

/// On CPU one loop reads the gradient and reads and writes parameters and averages. On CUDA eight calls
/// (executor/optimizers/lion.cpp) read and write whole tensors: gradients 14 times, averages and parameters 7.
Work work_of_one_dtype(const UnitUpdate& update) {
  const bool is_cpu = update.device == DeviceKind::cpu;
  const Bytes gradient = dtype_bytes(update.gradient), state = dtype_bytes(update.state);
  const Bytes storage = dtype_bytes(update.storage);
  const Bytes each = is_cpu ? gradient + 2 * storage + 2 * state : 14 * gradient + 3 * storage + 4 * state;
  return {.launches = is_cpu ? 1 : 8, .bytes = static_cast<double>((update.elements * each).n)};
}

Work work_of_lion(const UnitUpdate& update) {
  return is_in_fp32_chunks(update) ? work_of_fp32_chunks(update, 1, work_of_one_dtype, 0) : work_of_one_dtype(update);
}

std::int64_t scratch_of_lion(const UnitUpdate& update) {
  return is_in_fp32_chunks(update) ? fp32_chunks_scratch(update, 1) : 0;
}

}  // namespace

const Optimizer optimizers::lion{.states = kStates,
                                 .work = work_of_lion,
                                 .scratch = scratch_of_lion,
                                 .implementations = kFusedOnly,
                                 .pytorch = {},
                                 .pytorch_step = nullptr};

}  // namespace vramfit
