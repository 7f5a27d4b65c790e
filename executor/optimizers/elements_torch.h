// What updates share: optional operands, and a loop over elements on CPU ranks.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "executor/ops/vectors.h"
#include "executor/optimizers/adam_numbers.h"
#include "executor/optimizers/optimizers.h"

namespace vramfit {

inline std::optional<at::Tensor> optional(const at::Tensor* tensor) {
  return tensor == nullptr ? std::nullopt : std::optional<at::Tensor>(*tensor);
}

inline AdamRates adam_rates(const OptimizerOptions& o) {
  return {.learning_rate = o.learning_rate,
          .beta1 = o["beta1"],
          .beta2 = o["beta2"],
          .eps = o["eps"],
          .weight_decay = o["weight-decay"]};
}

/// What a [1] fp32 tensor on the host holds.
inline float number(const at::Tensor* tensor, float otherwise) {
  return tensor == nullptr ? otherwise : *tensor->const_data_ptr<float>();
}

/// Calls visit(gradients) with what they are: floats, or numbers of 16 bits.
template <typename Visit>
void with_gradients(const OptimizerCall& call, const Visit& visit) {
  const at::Tensor& gradients = call.gradients;
  const at::ScalarType type = gradients.scalar_type();
  if (type == at::kFloat) return visit(gradients.const_data_ptr<float>());
  type == at::kHalf ? visit(gradients.const_data_ptr<at::Half>()) : visit(gradients.const_data_ptr<at::BFloat16>());
}

/// CPU ranks: update(parameter, gradient, state) for each element of an optimizer with one state, the gradient divided
/// and in fp32; nothing where the step is skipped.
template <typename Update>
void update_elements(OptimizerCall& call, const Update& update) {
  constexpr std::int64_t kGrain = 16384;  // elements that a thread takes at least
  if (number(call.found_inf, 0) != 0) return;
  const float divisor = number(call.gradient_divisor, 1);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, call.parameters.scalar_type(), "update", [&] {
    auto* const parameters = call.parameters.mutable_data_ptr<scalar_t>();
    auto* const states = call.states[0].mutable_data_ptr<scalar_t>();
    with_gradients(call, [&](const auto* gradients) {
      at::parallel_for(0, call.parameters.numel(), kGrain, [&](std::int64_t first, std::int64_t end) {
        kernels::on_widest([&] {
          VRAMFIT_INDEPENDENT_ELEMENTS
          for (std::int64_t i = first; i < end; ++i) {
            update(parameters[i], static_cast<float>(gradients[i]) / divisor, states[i]);
          }
        });
      });
    });
  });
}

}  // namespace vramfit
