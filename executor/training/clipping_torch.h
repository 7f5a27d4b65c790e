// The global norm of a step's gradients, and the number that the optimizer divides them by. Operands are those of
// program::Kernel's norm_begin, norm_parts, norm_rest and scale.
#pragma once

#include "executor/training/loss_scaler_torch.h"
#include "executor/training/program_runner_torch.h"

namespace vramfit {

class Clipping {
 public:
  /// `clip`: the largest norm, 0: no clipping.
  Clipping(double clip, at::Device place, LossScaler& scaler) : clip_(clip), place_(place), scaler_(scaler) {}

  void begin(Operands& operands);
  /// Adds the squares of a unit's gradients. On CUDA the host waits for nothing.
  void add_parts(Operands& operands) const;
  void add_rest(Operands& operands);
  /// Turns the sum of squares into the norm of the gradients themselves (not scaled), and sets what they are to be
  /// divided by: the loss scale, and as torch.nn.utils.clip_grad_norm_ does max(1, (norm + 1e-6) / clip). Finds
  /// gradients that overflowed.
  void scale(Operands& operands);

 private:
  void scale_on_host(at::Tensor& norm, at::Tensor& divisor);
  void scale_on_device(at::Tensor& norm, at::Tensor& divisor);

  double clip_;
  at::Device place_;
  LossScaler& scaler_;
  double squares_ = 0;  // CPU: of the units so far
};

}  // namespace vramfit
