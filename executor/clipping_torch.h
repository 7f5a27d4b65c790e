// The global norm of a step's gradients, and the number that the optimizer divides them by.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "executor/loss_scaler_torch.h"
#include "executor/sharding/unit_state_torch.h"
#include "job/device.h"

namespace vramfit {

class Clipping {
 public:
  /// `clip`: the largest norm, 0: no clipping.
  Clipping(double clip, const Device& device, at::Device place) : clip_(clip), device_(device), place_(place) {}

  /// Makes "gradient norm" and "clip scale", on CUDA "norm part".
  void load();
  /// The norm over all gradient shards, of the gradients themselves (not scaled), and what they are to be divided by:
  /// the loss scale, and as torch.nn.utils.clip_grad_norm_ does max(1, (norm + 1e-6) / clip). Finds gradients that
  /// overflowed. On CUDA the host waits for nothing. A collective call of `shards` (null: nothing is sharded).
  void measure(const std::vector<UnitState>& units, Collectives* shards, LossScaler& scaler);

  /// [1] fp32: that of the last step measured.
  const at::Tensor& norm() const { return norm_; }
  const at::Tensor& divisor() const { return divisor_; }

 private:
  void measure_on_host(LossScaler& scaler);
  void measure_on_device(LossScaler& scaler);

  double clip_;
  const Device& device_;
  at::Device place_;
  at::Tensor norm_, divisor_, part_;
};

}  // namespace vramfit
