// What kernels do, from which the rates of a card give seconds.
#pragma once

#include <cstdint>
#include <vector>

#include "model_specs/dtype.h"

namespace vramfit {

/// What each launch works on. A product: [rows, inner] by [inner, columns]. Attention: a sequence of `rows` positions
/// in heads of `columns` numbers. Zeros where that isn't known, or doesn't matter.
struct WorkShape {
  std::int64_t rows = 0, columns = 0, inner = 0;
};

/// One kernel, or several alike that follow each other.
struct Work {
  /// What its FLOPs run on: matrix units, as products or as fused attention, PyTorch's own or cuDNN's. None: bound by
  /// memory or by launches. Cast: likewise, conversions of a product's factors to FP8; eager cast: those by PyTorch's
  /// own calls. Host link: a copy whose bytes go between the card and its host.
  enum class Unit : std::uint8_t {
    none,
    product,
    attention,
    attention_backward,
    cudnn_attention,
    cudnn_attention_backward,
    cast,
    eager_cast,
    host_link
  } unit = Unit::none;
  Dtype dtype = Dtype::f32;   // of the factors
  std::int64_t launches = 1;  // kernels
  double flops = 0;
  double bytes = 0;  // read and written in the device's memory
  WorkShape shape = {};
};

/// What an op's forward and backward do, kernel by kernel.
struct OpWork {
  std::vector<Work> forward, backward;
};

}  // namespace vramfit
