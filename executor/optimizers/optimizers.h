// The executor's side of an optimizer: one function over a unit's flat tensors.
#pragma once

#include <string_view>

#include "job/device.h"
#include "job/run_options.h"

namespace at {
class Tensor;
}

namespace vramfit {

/// Flat 1-D tensors over the trainable prefix of one unit's shard. No call allocates.
struct OptimizerCall {
  at::Tensor& parameters;  // storage dtype, updated
  at::Tensor& gradients;   // reduce dtype; may be overwritten
  at::Tensor& exp_avg;     // state dtype, updated
  at::Tensor& exp_avg_sq;
  at::Tensor& step;                    // [1] fp32: steps done before this one; incremented
  const at::Tensor* gradient_divisor;  // [1] fp32 on the device: gradients are divided by it first; null: none
  const at::Tensor* found_inf;         // [1] fp32 on the device: 1: nothing is changed, no step counted; null: none
  const OptimizerOptions& options;
};

struct OptimizerFunctions {
  std::string_view name;  // row of kOptimizerFunctions: "adamw"
  void (*step)(OptimizerCall&);
};

/// The row of `name`; throws InputError with a suggestion, NotModelled if the device has none.
const OptimizerFunctions& optimizer_functions(std::string_view name, DeviceKind device);

}  // namespace vramfit
