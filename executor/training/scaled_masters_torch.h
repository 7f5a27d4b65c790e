// Trained matrices that are fp16 numbers with a scale for each (program/stages/scaled_masters.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "executor/training/program_runner_torch.h"
#include "executor/training/scaled_sums_torch.h"
#include "job/job.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// numbers x scale, rounded once to what `to` has. On CPU a loop, which allocates nothing; else an own kernel or
/// LibTorch's calls, which don't either.
void scaled_numbers(const ScaledPart& from, const at::Tensor& to, KernelSource kernels = KernelSource::libtorch);

/// fp32 numbers with the scale of the largest one.
void round_scaled_on_cpu(const at::Tensor& numbers, const ScaledPart& to);
void round_scaled_by_calls(const at::Tensor& numbers, const ScaledPart& to, const at::Tensor& scratch);

/// A unit's shard of matrices, their scales, and what else is trained: undefined where there is nothing.
struct ScaledShard {
  at::Tensor numbers, scales, others;
};
/// A parameter's place there.
ScaledPart part_of(const ScaledShard& shard, const Unit& unit, std::size_t slot);

/// The functions of Kernel::read_scaled, round_scaled and gather_scaled. `layout` must outlive the runner.
void add_scaled_runs(ProgramRunner& runner, const UnitLayout& layout, KernelSource kernels);

}  // namespace vramfit
