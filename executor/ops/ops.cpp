#include "executor/ops/ops.h"

#include <ATen/core/Tensor.h>

#include <array>

#include "executor/ops/kernels_torch.h"

namespace vramfit {

namespace {

constexpr std::array kTable{
#define OP(name) &kernels::rows::name,
#include "model_specs/ops.def"
#undef OP
};

}  // namespace

const OpFunctions& op_functions(OpKind kind, DeviceKind device, KernelSource kernels) {
  const kernels::DeviceFunctions& row = *kTable.at(static_cast<std::size_t>(kind));
  if (device == DeviceKind::cpu) return row.cpu;
  return kernels == KernelSource::vramfit && row.own_cuda.forward != nullptr ? row.own_cuda : row.cuda;
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
