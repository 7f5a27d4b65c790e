#include "executor/ops/ops.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <string>

#include "base/error.h"
#include "executor/ops/kernels_torch.h"

namespace vramfit {

namespace {

const std::array kTable{
    &kernels::kActivation, &kernels::kAdd,          &kernels::kAttention,          &kernels::kCrossEntropy,
    &kernels::kEmbedding,  &kernels::kGlu,          &kernels::kLayerNorm,          &kernels::kLinear,
    &kernels::kRmsNorm,    &kernels::kRope,         &kernels::kLinearCrossEntropy, &kernels::kPositionEmbedding,
    &kernels::kSoftcap,    &kernels::kTypeEmbedding};

}  // namespace

const OpFunctions& op_functions(OpKind kind, DeviceKind device) {
  for (const kernels::DeviceFunctions* row : kTable) {
    const OpFunctions& functions = device == DeviceKind::cpu ? row->cpu : row->cuda;
    if (functions.kind == kind) return functions;
  }
  throw NotModelled("kernels of op " + std::string(op_name(kind)));
}

namespace kernels {

void pass_gradient(OpCall& call, std::size_t i) {
  if (!wants_input(call, i)) return;
  at::Tensor& target = call.input_gradients[i];
  const at::Tensor& source = *call.output_gradient;
  if (adds_input(call, i)) {
    target.add_(source);
  } else if (target.data_ptr() != source.data_ptr()) {
    target.copy_(source);
  }
}

void deliver_gradient(OpCall& call, std::size_t i, const at::Tensor& value) {
  if (!wants_input(call, i)) return;
  at::Tensor& target = call.input_gradients[i];
  if (adds_input(call, i)) {
    target.add_(value);
  } else if (target.defined()) {
    target.copy_(value);
  } else {
    target = value;
  }
}

}  // namespace kernels

}  // namespace vramfit
