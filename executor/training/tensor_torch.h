// Tensors in the project's own terms: a dtype of the job, a category and a label of the ledger. Outside executor/ops,
// data and dumps, all tensors are made here (tests/style/tensor_makers.py).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "job/cluster/device.h"
#include "model_specs/dtype.h"
#include "program/ledger/ledger.h"
#include "program/program.h"

namespace vramfit {

/// LibTorch's name of an element type.
at::ScalarType scalar_type(Dtype dtype);

/// Where a tensor is allocated, and under which category and label.
struct TensorPlacement {
  at::Device device;
  Category category;
  std::string label;
  program::Space space = program::Space::device;  // otherwise host memory, or managed memory that `device` touches
};

/// Fresh memory, not initialized; an undefined tensor when it has no elements (nothing of zero bytes is allocated).
at::Tensor allocate_tensor(const std::vector<std::int64_t>& sizes, Dtype dtype, const TensorPlacement& placement);

/// Memory that is already there, seen as a 1-D CPU tensor; it must outlive the tensor.
at::Tensor tensor_over(void* memory, std::int64_t elements, at::ScalarType type);

/// to += from over 1-D tensors of any float dtypes, without the temporary that ATen's CPU kernels make when they
/// differ.
void add_into(at::Tensor& to, const at::Tensor& from);

/// CUDA: sum += the squares of a 1-D float tensor of at most kNormPart elements; `part` and `sum` are [1] fp32. Nothing
/// is read by the host.
void add_squares(const at::Tensor& values, at::Tensor& part, at::Tensor& sum);

/// CPU: the sum of squares of a 1-D float tensor, in double. Independent of the number of threads.
double sum_of_squares(const at::Tensor& values);

}  // namespace vramfit
