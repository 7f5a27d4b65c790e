// Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", arXiv:1804.04235) as
// torch.optim.Adafactor defines it: of a matrix, averages of the gradient's squares by rows and by columns, from whose
// product each element's is estimated; of a vector, of each element. The averages are in fp32 whatever the dtype of the
// parameters.
#include "program/optimizers/adafactor.h"

#include <array>

#include "program/optimizers/optimizers.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit {

namespace {

using Holds = OptimizerState::Holds;

constexpr std::array kStates{OptimizerState{.name = "row_var", .holds = Holds::rows, .dtype = Dtype::f32},
                             OptimizerState{.name = "col_var", .holds = Holds::columns, .dtype = Dtype::f32},
                             OptimizerState{.name = "variance", .holds = Holds::vectors, .dtype = Dtype::f32},
                             OptimizerState{.name = "step", .holds = Holds::updates}};

std::int64_t row_and_column_sums(const Unit& unit) {
  std::int64_t sum = 0;
  for (const UnitParameter& p : unit.parameters) {
    if (p.trainable) sum = checked_add(sum, adafactor::sums_of(p.row_elements));
  }
  return sum;
}

std::int64_t sums_of_updates(const Unit& unit) {
  return std::ranges::count_if(unit.parameters, &UnitParameter::trainable);
}

std::int64_t scratch_of(const UnitUpdate& update) {
  if (update.device == DeviceKind::cpu) return 0;
  if (wants_own_kernel(update)) return adafactor::own_scratch(update.elements);
  return adafactor::Scratch{.elements = update.elements, .longest_row = update.longest_row}.size();
}

/// What LibTorch's calls take on CUDA (executor/optimizers/adafactor_cuda.cpp): launches for each parameter and each
/// chunk, and bytes of an element that are moved beside gradients and parameters.
struct Calls {
  std::int64_t of_parameter, of_chunk;
  Bytes fp32;
};

/// On CPU one loop for each parameter; on CUDA `own` kernels for each, or calls.
Work work_of(const UnitUpdate& update, Bytes read, std::int64_t own, const Calls& calls) {
  const bool is_cpu = update.device == DeviceKind::cpu;
  if (is_cpu || wants_own_kernel(update)) {
    return {.launches = update.parameters * (is_cpu ? 1 : own),
            .bytes = static_cast<double>((update.elements * read).n)};
  }
  const std::int64_t chunks = checked_add(ceil_div(update.elements, adafactor::kChunk), update.parameters - 1);
  return {.launches = update.parameters * calls.of_parameter + chunks * calls.of_chunk,
          .bytes = static_cast<double>((update.elements * (read + calls.fp32)).n)};
}

Work work_of_first_sums(const UnitUpdate& update) {
  // Own kernels read the gradient by rows and by columns.
  const std::int64_t times = wants_own_kernel(update) ? 2 : 1;
  const Bytes read = times * dtype_bytes(update.gradient) + dtype_bytes(update.storage);
  return work_of(update, read, 3, {2, 11, Bytes{44}});
}

Work work_of_update_sums(const UnitUpdate& update) {
  return work_of(update, dtype_bytes(update.gradient), 3, {7, 8, Bytes{60}});
}

Work work_of_update(const UnitUpdate& update) {
  const Bytes read = dtype_bytes(update.gradient) + 2 * dtype_bytes(update.storage);
  return work_of(update, read, 1, {20, 11, Bytes{88}});
}

constexpr std::array kSums{
    OptimizerSums{.name = "sums of rows and columns", .numbers = row_and_column_sums, .work = work_of_first_sums},
    OptimizerSums{.name = "sums of updates", .numbers = sums_of_updates, .work = work_of_update_sums}};

}  // namespace

const Optimizer optimizers::adafactor{.states = kStates,
                                      .work = work_of_update,
                                      .scratch = scratch_of,
                                      .sums = kSums,
                                      .implementations = kFusedOnly,
                                      .pytorch = kFusedOnly,
                                      .pytorch_step = eager::transformers_adafactor_step};

}  // namespace vramfit
