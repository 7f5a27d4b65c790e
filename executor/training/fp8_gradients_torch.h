// Gradients that are kept in FP8 between reductions (program/stages/fp8_gradients.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "executor/training/program_runner_torch.h"
#include "executor/training/scaled_sums_torch.h"
#include "job/job.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// codes x scale += gradient, in fp32; the scale is that of the largest sum (scale_of() in
/// executor/optimizers/tensor_scales.h). All are flat; `codes` are bytes, `scale` is [1] fp32.
void add_to_fp8_gradient_on_cpu(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scale);
/// The same numbers by LibTorch's calls, which also run on CPU tensors; they work in `scratch`, ScaledScratch of
/// fp32 numbers, and allocate nothing on GPUs.
void add_to_fp8_gradient_by_calls(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scale,
                                  const at::Tensor& scratch);

/// A whole gradient becomes codes, part by part, one for each scale; `scales` may be strided.
void code_fp8_gradient_on_cpu(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scales);
void code_fp8_gradient_by_calls(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scales,
                                const at::Tensor& scratch);
/// codes x scale += the sum of such parts of all ranks, which are rounded once.
void add_fp8_parts_on_cpu(const ScaledPart& parts, const ScaledPart& kept);
void add_fp8_parts_by_calls(const ScaledPart& parts, const ScaledPart& kept, const at::Tensor& scratch);

/// A unit's gradients: those in FP8, and the others. `shard` is undefined where there are no others.
struct UnitGradients {
  at::Tensor codes, scales, shard;
};
/// The sum of all replicas' gradients in FP8, added up in fp32 and rounded once: `all` has one replica's codes, and
/// one's scales, after the other's. All replicas get the same bits.
void sum_fp8_gradients_on_cpu(const Unit& unit, const UnitGradients& all, const UnitGradients& sum);
void sum_fp8_gradients_by_calls(const Unit& unit, const UnitGradients& all, const UnitGradients& sum,
                                const at::Tensor& scratch);
/// All of them as numbers of the storage dtype, with zeros between parameters.
void read_fp8_gradients_on_cpu(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into);
void read_fp8_gradients_by_calls(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into);
void read_fp8_gradients_by_kernel(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into);

/// The functions of Kernel::add_fp8, code_fp8, add_fp8_parts, sum_fp8 and read_fp8. `layout` must outlive the runner.
void add_fp8_gradient_runs(ProgramRunner& runner, const UnitLayout& layout, KernelSource kernels);

}  // namespace vramfit
