// Runs one op through its kernels and holds outputs, gradients and allocations against autograd and the rule.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "executor/ops/ops.h"
#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

/// An op with its data in fp32; ids and labels are int64.
struct OpCase {
  OpKind kind{};
  Attributes attributes{};
  BatchShape shape{};
  std::vector<at::Tensor> inputs{}, parameters{};
  struct Output {
    std::vector<std::int64_t> sizes;
    bool is_fp32 = false;
  };
  std::vector<Output> outputs{};
  std::vector<at::Tensor> rope_cos{}, rope_sin{};
  double loss_scale = 1;
  std::vector<std::size_t> constants{};  // inputs, or beyond them parameters, that never want a gradient
  bool is_taken_over = false;            // another op writes over its output
  /// Output 0 from inputs and parameters in double; what its autograd gives is the truth.
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& parameters)> truth{};
  /// For each input, then each parameter, in whose gradient large terms may cancel: the sums of their absolute values,
  /// in double; undefined for the others. Not set: for none.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs, const at::Tensor& output_gradient)>
      cancelled{};
};

/// What backward is given, in fp32, where the op is no loss.
at::Tensor output_gradient_of(const OpCase& op);

/// How gradients of inputs and parameters come to be.
enum class GradientMode { fresh, taken, add };

struct OpRun {
  std::string precision = "fp32";
  DeviceKind device = DeviceKind::cpu;
  GradientMode mode = GradientMode::fresh;
  bool slices = false;  // 2-D parameters lie in larger ones, as rows or, transposed, as columns
  int unwanted = -1;    // this input (or, beyond them, parameter) wants no gradient
  double tolerance = 0;
  Attention attention = Attention::automatic;
  bool deterministic = false;
  KernelSource kernels = KernelSource::libtorch;
  at::Device place = at::kCPU;  // of tensors; DeviceKind::cuda's functions run on CPUs, too
  int multiprocessors = 0;      // of the device
};

struct OpResult {
  at::Tensor output;                     // as it was before backward
  std::vector<at::Tensor> others;        // the other outputs
  std::vector<at::Tensor> gradients;     // of inputs, then of parameters
  std::vector<std::string> differences;  // what is wrong (difference_torch.h) with the output and the gradients
};

/// Forward and backward of the case. CPU runs, and those of own kernels, also check that what was allocated is the
/// rule's list, by name and bytes.
OpResult run_op(const OpCase& op, const OpRun& run);

/// run_op, which must find no difference. Returns the gradients.
std::vector<at::Tensor> check_op(const OpCase& op, const OpRun& run);

/// check_op over fp32, bf16-mixed, bf16-pure and fp16-mixed, all gradient modes, both devices' kernels (`cuda`: those
/// that run on CPU tensors), each gradient left out once.
void check_op_in_all_ways(const OpCase& op, bool cuda = true, Attention attention = Attention::automatic);

}  // namespace vramfit::testing
