// Where a program of tests runs own kernels: their source on CPUs (emulated_place.cpp), or the library's on a GPU
// (card_place.cpp). The cases are the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

/// Of the tensors that kernels work on.
at::Device kernel_device();
/// Of a GPU; 0 on CPUs.
int multiprocessors();

/// A tensor of the host where kernels can reach it: there, or, on CPUs, itself.
inline at::Tensor placed(const at::Tensor& tensor) { return on_device(tensor, kernel_device()); }

/// While one lives, own kernels are those of the place. On CPUs threads take turns from the first to the last, or
/// backwards; on a GPU they come as they do.
class PlacedKernels {
 public:
  explicit PlacedKernels(bool backwards = false);
  ~PlacedKernels();
  PlacedKernels(const PlacedKernels&) = delete;
  PlacedKernels& operator=(const PlacedKernels&) = delete;
  PlacedKernels(PlacedKernels&&) = delete;
  PlacedKernels& operator=(PlacedKernels&&) = delete;
};

/// A GPU's cases: `few`, and `many`, of sizes that would take a CPU's threads too long: a model's, or with more
/// elements than threads that are started, so that each goes on to others.
template <typename T>
std::vector<T> cases_of_place(std::vector<T> few, const std::vector<T>& many) {
  if (!kernel_device().is_cpu()) few.insert(few.end(), many.begin(), many.end());
  return few;
}

}  // namespace vramfit::testing
