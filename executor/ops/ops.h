// The executor's side of every op: two plain functions that write into buffers that the tape has allocated.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "program/ops/rule.h"

namespace at {
class Tensor;
}

namespace vramfit {

/// Allocates a kernel's temporaries under the labels its rule lists. A temporary lives until the call ends.
class Temporaries {
 public:
  virtual ~Temporaries() = default;
  virtual at::Tensor allocate(std::string_view name, const std::vector<std::int64_t>& sizes, Dtype dtype) = 0;
};

/// Facts of the step an op may read.
struct StepFacts {
  double loss_scale = 1;                       // 1 / label tokens of the global batch
  const at::Tensor* gradient_scale = nullptr;  // [1] fp32 on the device: a factor of every gradient (fp16); null: none
  std::uint64_t seed = 0;
  std::int64_t step = 0, micro_batch = 0, first_global_row = 0;
  const std::vector<at::Tensor>* rope_cos = nullptr;  // per rope table: [S, dims/2] of the buffer dtype
  const std::vector<at::Tensor>* rope_sin = nullptr;
};

/// One op about to run. Tensors are 2-D [rows, columns] (ids, labels, statistics: 1-D), contiguous unless said.
/// Forward fills `outputs`; backward reads `inputs`/`outputs` that its rule saved and `output_gradient`, and
/// fills `input_gradients` and `parameter_gradients` where Needs asks (undefined otherwise), adding where
/// Needs::accumulate_* says so. With Rule::in_place_input, outputs[0] is that input's tensor; with
/// take_output_gradient / take_saved, input_gradients[i] shares storage with what it takes over.
struct OpCall {
  const OpContext& context;
  const Needs& needs;
  const StepFacts& facts;
  Temporaries& temporaries;
  std::vector<at::Tensor> inputs, outputs, parameters;  // parameters: the used rows or columns only
  at::Tensor* output_gradient = nullptr;
  std::vector<at::Tensor> input_gradients, parameter_gradients;
};

struct OpFunctions {
  void (*forward)(OpCall&) = nullptr;
  void (*backward)(OpCall&) = nullptr;
  /// Forward after that of the op that makes input 0, in one pass (OpRow::joins); null: not here.
  void (*joint_forward)(OpCall& before, OpCall& call) = nullptr;
};

/// The row of a kind on a device, on GPUs by own kernels where it has them and they are asked for.
const OpFunctions& op_functions(OpKind kind, DeviceKind device, KernelSource kernels = KernelSource::libtorch);

}  // namespace vramfit
