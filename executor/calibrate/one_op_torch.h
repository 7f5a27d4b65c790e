// One op of a model with tensors of its own, so that its kernels can be called alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/ops/ops.h"
#include "job/job.h"

namespace vramfit {

/// What an op is given: numbers of a row for each input and output, whole shapes for parameters.
struct OpSizes {
  OpKind kind{};
  Attributes attributes = {};
  BatchShape shape = {};
  std::vector<std::int64_t> inputs = {}, outputs = {};
  std::vector<std::vector<std::int64_t>> parameters = {};
  std::optional<Value> statistics = {};  // a last output in fp32: rstd, lse
  bool is_loss = false;                  // of labels, its last input; its first output is one number
  std::int64_t angles = 0;               // of a position, in tables of rotary embeddings
};

/// Random inputs and parameters; gradients of all of them but labels are wanted. Calls can be repeated in any order
/// once forward has run.
class OneOp {
 public:
  OneOp(const OpSizes& sizes, const Precision& precision, const Device& device, at::Device place,
        KernelSource kernels = KernelSource::libtorch);
  OneOp(const OneOp&) = delete;  // the context refers to members
  OneOp& operator=(const OneOp&) = delete;
  OneOp(OneOp&&) = delete;
  OneOp& operator=(OneOp&&) = delete;
  ~OneOp() = default;

  void forward();
  void backward();
  /// Of a call of each, as the op's rule says.
  const OpWork& work() const { return rule_.work; }

 private:
  Op described(const OpSizes& sizes);
  OpContext context() const;
  /// What forward and backward have in common.
  OpCall call(const OpContext& of, Temporaries& temporaries) const;
  at::Tensor made(const std::vector<std::int64_t>& sizes, Dtype dtype, bool is_random) const;
  at::Tensor made(const Value& value, bool is_random) const;
  std::vector<at::Tensor> outputs_before() const;

  Precision precision_;
  Device device_;
  at::Device place_;
  KernelSource kernels_;
  BatchShape shape_;
  Graph graph_;
  Needs needs_;
  Rule rule_;
  StepFacts facts_;
  std::vector<at::Tensor> inputs_, outputs_, parameters_, input_gradients_, parameter_gradients_;
  at::Tensor output_gradient_;
  std::vector<at::Tensor> rope_cos_, rope_sin_;
};

}  // namespace vramfit
