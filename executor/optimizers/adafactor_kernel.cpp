#include <ATen/core/Tensor.h>

#include "executor/kernels/own_kernels_torch.h"
#include "executor/optimizers/adafactor_cuda.h"
#include "executor/optimizers/elements_torch.h"
#include "program/optimizers/adafactor.h"

namespace vramfit {

namespace {

static_assert(adafactor::kRowsOfBlock == cuda::kAdafactorRowsOfBlock &&
                  adafactor::kMostBlocks == cuda::kAdafactorBlocks,
              "the scratch has two sums for each thread block");

const float* number_at(const at::Tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->const_data_ptr<float>();
}

float* numbers_of(const at::Tensor& state) { return state.defined() ? state.mutable_data_ptr<float>() : nullptr; }

cuda::AdafactorUpdate update_of(OptimizerCall& call) {
  const OptimizerOptions& o = call.options;
  return {.parameters = call.parameters.mutable_data_ptr(),
          .gradients = call.gradients.const_data_ptr(),
          .number = number_of(call.parameters.scalar_type()),
          .gradient = number_of(call.gradients.scalar_type()),
          .steps = call.states[3].const_data_ptr<float>(),
          .gradient_divisor = number_at(call.gradient_divisor),
          .found_inf = number_at(call.found_inf),
          .rates = {.learning_rate = o.learning_rate,
                    .beta2_decay = o["beta2-decay"],
                    .eps1 = adafactor_epsilon(call),
                    .eps2 = o["eps2"],
                    .update_clip = o["update-clip"],
                    .weight_decay = o["weight-decay"]},
          .partial = static_cast<double*>(call.scratch->mutable_data_ptr())};
}

}  // namespace

void adafactor_by_kernel(OptimizerCall& call) {
  const cuda::Kernels& kernels = require_own_kernels();
  const cuda::Stream stream = stream_of(call.parameters);
  const bool is_first = call.sums.size() == 1;
  if (is_first) {
    check_launch(kernels.count_update({.parameters = nullptr,
                                       .gradients = nullptr,
                                       .number = cuda::Number::f32,
                                       .gradient = cuda::Number::f32,
                                       .elements = 0,
                                       .steps = call.states[3].mutable_data_ptr<float>(),
                                       .gradient_divisor = nullptr,
                                       .found_inf = number_at(call.found_inf),
                                       .rates = {}},
                                      stream));
  }
  const cuda::AdafactorUpdate update = update_of(call);
  const auto run = is_first          ? kernels.adafactor_sums
                   : call.finds_sums ? kernels.adafactor_change_sums
                                     : kernels.adafactor_update;
  float *rows = numbers_of(call.states[0]), *columns = numbers_of(call.states[1]),
        *vectors = numbers_of(call.states[2]);
  float* sums = call.sums[0].mutable_data_ptr<float>();
  float* change_sum = is_first ? nullptr : call.sums[1].mutable_data_ptr<float>();
  for (const ParameterRows& p : call.rows) {
    const bool is_matrix = p.columns > 1;
    check_launch(run(update,
                     {.offset = p.offset,
                      .rows = p.rows,
                      .columns = p.columns,
                      .all_rows = p.all_rows,
                      .rows_averages = is_matrix ? rows : nullptr,
                      .columns_averages = is_matrix ? columns : vectors,
                      .sums = sums,
                      .change_sum = change_sum},
                     stream));
    sums += adafactor::sums_of(p.columns);
    if (!is_first) ++change_sum;
    (is_matrix ? rows : vectors) += p.held_rows;
    if (is_matrix) columns += p.columns;
  }
}

}  // namespace vramfit
