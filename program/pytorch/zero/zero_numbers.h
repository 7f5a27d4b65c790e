// Small tensors that all stages of DeepSpeed's ZeRO compute alike: norms, and whether they are numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

class ZeroNumbers {
 protected:
  explicit ZeroNumbers(Torch& torch) : library_(torch) {}

  /// What a call makes, to be let go of soon.
  Tensor computed(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype, const char* what);
  Tensor number(const char* call, const Accesses& inputs, Dtype dtype, const char* what) {
    return computed(call, inputs, 1, dtype, what);
  }
  /// isfinite(x)
  Tensor is_finite(const Tensor& x);
  /// All of x into one number of its type; in parts that 32 bits can address.
  Tensor reduced(const char* call, const Tensor& x);
  /// Of a gradient that is widened for it.
  Tensor norm_in_fp64(const Tensor& gradient);
  /// Of norms in fp64, of which there is at least one.
  Tensor sum_of_squares(const std::vector<Tensor>& norms);
  /// runtime/utils.py: is_invalid_grad_norm
  Tensor is_any_invalid(const Tensor& norms);
  void check_norm(const Tensor& norm) { is_any_invalid(norm); }
  /// A norm in fp32 (runtime/utils.py: mask_nan_or_inf_with_val_inplace).
  void mark_if_invalid(const Tensor& norm);
  /// runtime/utils.py: combine_grad_norm_groups, of at least one norm.
  Tensor combined(const std::vector<Tensor>& norms);
  /// Scales a gradient so that `norm` isn't larger than the limit (unscale_and_clip_grads).
  void clip_to(const Tensor& gradient, const Tensor& norm);

  Stream stream_ = Stream::compute;  // on which all of it is computed, and from whose pool

 private:
  Torch& library_;
};

}  // namespace vramfit::eager
