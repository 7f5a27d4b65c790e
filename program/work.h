// What kernels do, from which the rates of a card give seconds.
#pragma once

#include <cstdint>
#include <vector>

#include "model_specs/dtype.h"

namespace vramfit {

/// One kernel, or several alike that follow each other.
struct Work {
  /// What its FLOPs run on: matrix units, as products or as fused attention. None: bound by memory or by launches.
  /// Host link: a copy whose bytes go between the card and its host.
  enum class Unit : std::uint8_t { none, product, attention, host_link } unit = Unit::none;
  Dtype dtype = Dtype::f32;   // of the factors
  std::int64_t launches = 1;  // kernels
  double flops = 0;
  double bytes = 0;  // read and written in the device's memory
};

/// What an op's forward and backward do, kernel by kernel.
struct OpWork {
  std::vector<Work> forward, backward;
};

}  // namespace vramfit
