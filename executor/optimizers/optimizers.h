// The executor's side of an optimizer: one function over a unit's flat tensors, in executor/optimizers/NAME.cpp for
// each NAME of job/optimizers/optimizers.def. What it keeps and costs is in the row of program/optimizers/NAME.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "job/cluster/device.h"
#include "job/job.h"
#include "job/run/run_options.h"

namespace at {
class Tensor;
}

namespace vramfit {

/// A parameter's elements in a unit's flat tensors, and the random numbers that are drawn for them.
struct RandomStretch {
  std::int64_t offset = 0, elements = 0;
  std::int64_t first = 0;  // index in the whole parameter of the stretch's first element
  std::uint64_t key = 0;   // of the stream whose i-th word is element i's (executor/training/counter_random.h)
};

/// A parameter that is trained, in a unit's flat tensors: [held_rows, columns] from `offset` on, of which the first
/// `rows` are rows of the parameter and the rest padding.
struct ParameterRows {
  std::int64_t offset = 0, rows = 0, columns = 1, held_rows = 0;
  std::int64_t all_rows = 0;  // on all ranks that hold some
};

/// Flat 1-D tensors over the trainable prefix of one unit's shard. States have the dtype of their row
/// (program/optimizers), one without numbers is undefined; gradients that of parameters unless the row takes others. A
/// call allocates nothing but what the row says of its form.
struct OptimizerCall {
  at::Tensor& parameters;              // updated
  at::Tensor& gradients;               // may be overwritten
  std::vector<at::Tensor> states;      // updated, in the order of the row; a count is [1] fp32
  const at::Tensor* gradient_divisor;  // [1] fp32 on the device: gradients are divided by it first; null: none
  const at::Tensor* found_inf;         // [1] fp32 on the device: 1: nothing is changed or counted; null: none
  const OptimizerOptions& options;     // complete (job/optimizers/optimizers.h)
  at::Tensor* scratch = nullptr;       // [Optimizer::scratch] fp32, undefined; null where that is 0
  std::span<const RandomStretch> stretches = {};  // of an optimizer that draws random numbers, ascending
  std::span<const ParameterRows> rows = {};  // ascending; of an optimizer with states by parameter, or a form of calls
  // Of an optimizer that needs sums over parameters (Optimizer::sums): fp32, as its row has them. The call that finds
  // sums writes the last of them for this rank's rows, and may change states; the update itself reads them all.
  std::vector<at::Tensor> sums = {};
  bool finds_sums = false;
};

using OptimizerStep = void (*)(OptimizerCall& call);

/// By the kind of device that the tensors are on.
struct OptimizerSteps {
  OptimizerStep cpu, cuda;
  OptimizerStep own_cuda = nullptr;  // by own kernels (--kernels vramfit), with less scratch; null: there are none
  bool draws = false;                // random numbers
  // Of LibTorch's calls on either device, which allocate what the row says; null: there are none.
  OptimizerStep foreach = nullptr, loop = nullptr;
};

/// Throws InputError with a suggestion for an unknown name.
OptimizerStep optimizer_step(std::string_view name, DeviceKind device, KernelSource kernels = KernelSource::libtorch,
                             OptimizerImplementation form = OptimizerImplementation::fused);
/// A job's.
OptimizerStep optimizer_step(const Job& job, DeviceKind device);
bool draws_random_numbers(std::string_view optimizer);

namespace optimizer_steps {
#define OPTIMIZER(name, ...) extern const OptimizerSteps name;
#include "job/optimizers/optimizers.def"
#undef OPTIMIZER
}  // namespace optimizer_steps

}  // namespace vramfit
