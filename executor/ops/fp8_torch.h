// The products of a linear with FP8 operands (program/ops/fp8.h says which), per device: forward fills outputs[0],
// backward the gradients of input 0 and of the weight where they are wanted. The bias's gradient is the linear's.
#pragma once

#include "executor/ops/ops.h"

namespace vramfit::kernels {

/// Operands rounded to FP8 and kept in the compute dtype, products in fp32: the same numbers without FP8 hardware.
void fp8_forward_cpu(OpCall& call);
void fp8_backward_cpu(OpCall& call);

/// at::_scaled_mm; all of it also runs on CPU tensors.
void fp8_forward_cuda(OpCall& call);
void fp8_backward_cuda(OpCall& call);

}  // namespace vramfit::kernels
