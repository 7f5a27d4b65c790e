#include "executor/optimizers/adamw_kernels.h"

#include "executor/kernels/own_kernels_torch.h"
#include "executor/optimizers/elements_torch.h"

namespace vramfit {

namespace {

const float* number_at(const at::Tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->const_data_ptr<float>();
}

cuda::AdamwUpdate update_of(OptimizerCall& call) {
  return {.parameters = call.parameters.mutable_data_ptr(),
          .gradients = call.gradients.const_data_ptr(),
          .number = number_of(call.parameters.scalar_type()),
          .gradient = number_of(call.gradients.scalar_type()),
          .elements = call.parameters.numel(),
          .steps = call.states.back().mutable_data_ptr<float>(),
          .gradient_divisor = number_at(call.gradient_divisor),
          .found_inf = number_at(call.found_inf),
          .rates = adam_rates(call.options)};
}

cuda::PlainAverages averages_of(OptimizerCall& call) {
  return {.first = call.states[0].mutable_data_ptr(),
          .second = call.states[1].mutable_data_ptr(),
          .number = number_of(call.states[0].scalar_type())};
}

}  // namespace

void update_coded_by_kernel(OptimizerCall& call, cuda::StateCodes kind) {
  const cuda::Kernels& kernels = require_own_kernels();
  const cuda::AdamwUpdate update = update_of(call);
  const cuda::Stream stream = stream_of(call.parameters);
  check_launch(kernels.count_update(update, stream));
  check_launch(kernels.update_coded(update,
                                    {.first = call.states[0].mutable_data_ptr<std::uint8_t>(),
                                     .second = call.states[1].mutable_data_ptr<std::uint8_t>(),
                                     .first_scales = call.states[2].mutable_data_ptr<float>(),
                                     .second_scales = call.states[3].mutable_data_ptr<float>(),
                                     .kind = kind},
                                    stream));
}

void update_plain_by_kernel(OptimizerCall& call) {
  const cuda::Kernels& kernels = require_own_kernels();
  const cuda::AdamwUpdate update = update_of(call);
  const cuda::Stream stream = stream_of(call.parameters);
  check_launch(kernels.count_update(update, stream));
  check_launch(kernels.update_plain(update, averages_of(call), stream));
}

void update_rounding_by_kernel(OptimizerCall& call) {
  const cuda::Kernels& kernels = require_own_kernels();
  const cuda::AdamwUpdate update = update_of(call);
  const cuda::Stream stream = stream_of(call.parameters);
  check_launch(kernels.count_update(update, stream));
  for (const RandomStretch& stretch : call.stretches) {
    check_launch(kernels.update_rounding(
        update, averages_of(call),
        {.offset = stretch.offset, .elements = stretch.elements, .first = stretch.first, .key = stretch.key}, stream));
  }
}

void update_scaled_by_kernel(OptimizerCall& call) {
  const cuda::Kernels& kernels = require_own_kernels();
  const cuda::AdamwUpdate update = update_of(call);
  const cuda::Stream stream = stream_of(call.parameters);
  const cuda::ScaledAverages averages{.first = call.states[0].mutable_data_ptr<std::uint8_t>(),
                                      .second = call.states[1].mutable_data_ptr(),
                                      .first_scales = call.states[2].mutable_data_ptr<float>(),
                                      .second_scales = call.states[3].mutable_data_ptr<float>(),
                                      .parameters = static_cast<std::int64_t>(call.rows.size()),
                                      .numbers = static_cast<cuda::ScaledNumbers*>(call.scratch->mutable_data_ptr())};
  check_launch(kernels.begin_scaled(update, averages, stream));
  std::int64_t parameter = 0;
  for (const ParameterRows& rows : call.rows) {
    const std::int64_t elements = checked_mul(rows.held_rows, rows.columns);
    check_launch(kernels.update_scaled(
        update, averages, {.parameter = parameter++, .offset = rows.offset, .elements = elements}, stream));
  }
}

}  // namespace vramfit
