// Random masks that are functions of where an element is, for --gradient-mask keep:P and for the dropout of adapters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace vramfit {

/// A random mask over a stretch of a larger tensor. Element i of that tensor is kept when the i-th word of the stream
/// `key` is below the probability, whatever rank holds it.
struct MaskDraw {
  std::uint64_t key = 0;
  std::int64_t first = 0;  // index in the larger tensor of the stretch's first element
  double keep = 1;         // probability
};

/// values * mask / keep, over 1-D CPU tensors of any float dtype; allocates nothing.
void mask_on_cpu(at::Tensor& values, const MaskDraw& draw);
/// The same numbers by LibTorch's elementwise calls, on any device; `words` and `bits` are int64, at least as long as
/// the values. On CUDA nothing else is allocated.
void mask_by_calls(at::Tensor& values, const MaskDraw& draw, const at::Tensor& words, const at::Tensor& bits);

/// The same numbers by an own kernel, from one tensor without gaps into another, or itself; allocates nothing.
void mask_by_kernel(const at::Tensor& from, at::Tensor& to, const MaskDraw& draw);

/// The stream of an adapter's dropout in one step. `name` is that of its matrix A: adapters that share A share its
/// input, too.
std::uint64_t dropout_key(std::uint64_t seed, std::int64_t step, std::string_view name);

}  // namespace vramfit
