// Whether a kernel's result is right to rounding.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

namespace vramfit::testing {

/// What a kernel's result should be, in double.
struct Expected {
  at::Tensor truth;            // what the op computes
  at::Tensor before = {};      // what was there and the truth is added to; undefined: nothing
  at::Tensor cancelled = {};   // per element, the sum of the absolute values of terms that cancel; undefined: none do
  std::int64_t additions = 1;  // parts that are added to the tensor one after another, each rounded to its dtype
};

/// What is wrong with `got`; empty if nothing is. The error's norm may be the sum of
/// - `tolerance` times the truth's norm, however small that is,
/// - what the additions round off: half a unit in the last place of the result's dtype, times what is added to what,
///   times the square root of their number, as independent roundings add up,
/// - half a unit in the last place of fp32, in which all kernels sum, times the terms that cancel.
/// Where the truth is exactly 0 and no terms cancel, the result there is exactly what was there before.
std::string difference(const at::Tensor& got, const Expected& expected, double tolerance);

}  // namespace vramfit::testing
