// Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", arXiv:1804.04235) as
// torch.optim.Adafactor defines it: of a matrix, averages of the gradient's squares by rows and by columns, from whose
// product each element's is estimated; of a vector, of each element. The averages are in fp32 whatever the dtype of the
// parameters.
#include "program/optimizers/adafactor.h"

#include <array>

#include "program/optimizers/optimizers.h"
#include "program/pytorch/optimizers.h"

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
  return adafactor::Scratch{.elements = update.elements, .longest_row = update.longest_row}.size();
}

/// On CPU one loop for each parameter. On CUDA (executor/optimizers/adafactor_cuda.cpp) `of_chunk` calls for each chunk
/// and `of_parameter` for each parameter, which move `fp32` bytes of an element beside gradients and parameters.
Work work_of(const UnitUpdate& update, Bytes read, std::int64_t of_parameter, std::int64_t of_chunk, Bytes fp32) {
  const bool is_cpu = update.device == DeviceKind::cpu;
  const std::int64_t chunks = checked_add(ceil_div(update.elements, adafactor::kChunk), update.parameters - 1);
  const Bytes each = is_cpu ? read : read + fp32;
  return {.launches = is_cpu ? update.parameters : update.parameters * of_parameter + chunks * of_chunk,
          .bytes = static_cast<double>((update.elements * each).n)};
}

Work work_of_first_sums(const UnitUpdate& update) {
  const Bytes read = dtype_bytes(update.gradient) + dtype_bytes(update.storage);
  return work_of(update, read, 2, 11, Bytes{44});
}

Work work_of_update_sums(const UnitUpdate& update) {
  return work_of(update, dtype_bytes(update.gradient), 7, 8, Bytes{60});
}

Work work_of_update(const UnitUpdate& update) {
  const Bytes read = dtype_bytes(update.gradient) + 2 * dtype_bytes(update.storage);
  return work_of(update, read, 20, 11, Bytes{88});
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
