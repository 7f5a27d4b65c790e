// cuDNN's attention, which PyTorch prefers on some cards and the engine doesn't call, so that its kernels can be timed.
#pragma once

#include <ATen/core/Tensor.h>

#include "model_specs/dtype.h"

namespace vramfit {

/// Causal, of one row whose heads all have keys and values of their own.
class CudnnAttention {
 public:
  struct Sizes {
    std::int64_t sequence, heads, head_dim;
  };
  /// Runs it forward. Throws c10::Error where PyTorch has no such kernel.
  CudnnAttention(const Sizes& sizes, Dtype dtype, at::Device place);

  void forward();
  void backward();

 private:
  at::Tensor query_, key_, value_, gradient_;
  at::Tensor out_, lse_, seed_, offset_, query_starts_, key_starts_;
  std::int64_t sequence_;
};

}  // namespace vramfit
