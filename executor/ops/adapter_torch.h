// What the ops of adapters share (executor/ops/lora.cpp, magnitude.cpp, dropped_dora.cpp): dropout, products, norms and
// sums. Of those with A and B, inputs are x [N, I] and y [N, O], parameters begin with A and B, outputs with y and h;
// norms are the third.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "executor/ops/ops.h"

namespace vramfit::kernels {

/// Where dropout works, made in the order in which the rule lists it.
struct Dropout {
  at::Tensor dropped;      // [N, I]
  at::Tensor words, bits;  // on CUDA, without own kernels
};
/// Without any, of an op that drops nothing.
Dropout make_dropout(OpCall& call);

/// Multiplies [N, I] by the mask of this micro-batch: element (row, position, column) of the data order, so that
/// neither the mesh nor a recomputation changes it.
void drop(const OpCall& call, const Dropout& d, const at::Tensor& values);

/// What A multiplies: x, or what is left of it, in `dropped`.
at::Tensor adapter_input(const OpCall& call, const Dropout& d);

/// out = factor * a b, or added to out.
struct Product {
  at::Tensor a, b;  // either may be transposed
  at::Tensor out;
  bool add = false;
  double factor = 1;
};

/// Runs products on the call's device; on CPU, 16-bit ones through a scratch that they share.
class Products {
 public:
  Products(OpCall& call, std::int64_t scratch);
  void operator()(const Product& p) const;

 private:
  bool is_cpu_;
  float* scratch_ = nullptr;
};

/// Fills the norms of the rows of `matrix` (O, I), or transposed as the op says, and its adapter.
void find_norms(OpCall& call, const at::Tensor& matrix);

/// On CUDA, the magnitudes' gradient before it is divided.
struct ScaledSums {
  const at::Tensor& kept;             // [N, O]
  const at::Tensor& rows;             // scratch [tokens at a time, O], fp32
  const at::Tensor* shift = nullptr;  // [O], taken from each row of `kept`
};
/// The sums over tokens of kept * dy, in new tensors [O, 1] in fp32 and one of ones.
at::Tensor sums_of_products(OpCall& call, const ScaledSums& of);

}  // namespace vramfit::kernels
