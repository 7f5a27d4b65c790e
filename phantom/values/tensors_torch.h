// What core knows of a tensor's elements, and a view of them for the CPU's operators.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <optional>

#include "phantom/values/core.h"

namespace vramfit::values {

inline const VramfitValueSettings& settings() {
  static const VramfitValueSettings kSettings = vramfit_value_settings();
  return kSettings;
}

inline bool is_integral(const at::Tensor& t) { return c10::isIntegralType(t.scalar_type(), /*includeBool=*/true); }

/// Other integers than these are quantized weights as a rule, of which there are gigabytes.
inline bool is_index_or_mask(const at::Tensor& t) {
  return t.scalar_type() == at::kLong || t.scalar_type() == at::kBool;
}

inline constexpr std::int64_t kMostOtherIntegerBytes = std::int64_t{1} << 20;

/// Of the tensors that are computed.
inline std::int64_t limit_bytes(const at::Tensor& t) {
  if (is_index_or_mask(t)) return settings().integer_bytes;
  return is_integral(t) ? std::min(settings().integer_bytes, kMostOtherIntegerBytes) : settings().float_bytes;
}

inline std::int64_t bytes_of(const at::Tensor& t) { return t.numel() * static_cast<std::int64_t>(t.element_size()); }

/// A strided tensor of a card that shares no bits with a conjugate: those are resolved before operators get here.
inline bool is_on_card(const at::Tensor& t) {
  return t.defined() && t.is_cuda() && t.layout() == at::kStrided && t.has_storage();
}

inline char* address_of(const at::Tensor& t) {
  return static_cast<char*>(const_cast<void*>(t.const_data_ptr()));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

/// From the first byte of the first element to the last of the last.
inline std::int64_t extent_bytes(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  std::int64_t elements = 1;
  for (std::int64_t d = 0; d < t.dim(); ++d) elements += (t.size(d) - 1) * t.stride(d);
  return elements * static_cast<std::int64_t>(t.element_size());
}

/// A strided tensor as equal runs of bytes without gaps: `outer` has the size and the stride, in bytes, of each
/// dimension over which they repeat.
struct Runs {
  std::int64_t bytes = 0, count = 1;
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 6> outer;
};

inline Runs runs_of(const at::Tensor& t) {
  Runs runs{.bytes = static_cast<std::int64_t>(t.element_size()), .count = 1, .outer = {}};
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 6> dims;  // stride, size
  for (std::int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 1 && t.stride(d) != 0) dims.emplace_back(t.stride(d) * t.element_size(), t.size(d));
  }
  std::sort(dims.begin(), dims.end());
  for (const auto& [stride, size] : dims) {
    if (runs.outer.empty() && stride == runs.bytes) {
      runs.bytes *= size;
    } else {
      runs.outer.emplace_back(size, stride);
      runs.count *= size;
    }
  }
  return runs;
}

/// Calls `f(address, bytes)` for each run until it returns false.
template <typename F>
void each_run(const at::Tensor& t, const Runs& runs, const F& f) {
  for (std::int64_t n = 0; n < runs.count; ++n) {
    char* at = address_of(t);
    std::int64_t rest = n;
    for (const auto& [size, stride] : runs.outer) {
      at += rest % size * stride;
      rest /= size;
    }
    if (!f(at, runs.bytes)) return;
  }
}

inline constexpr std::int64_t kMostRuns = 4096;  // beyond, the gaps between them count as the tensor's

/// Assumptions that the elements rest on, or VRAMFIT_UNKNOWN.
inline std::int64_t known(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  const Runs runs = runs_of(t);
  if (runs.count > kMostRuns) return vramfit_value_known(address_of(t), extent_bytes(t));
  std::int64_t all = 0;
  each_run(t, runs, [&](const char* address, std::int64_t bytes) {
    const std::int64_t one = vramfit_value_known(address, bytes);
    all = one == VRAMFIT_UNKNOWN ? one : all | one;
    return all != VRAMFIT_UNKNOWN;
  });
  return all;
}

inline void set_known(const at::Tensor& t, std::int64_t assumptions) {
  if (t.numel() == 0) return;
  const Runs runs = runs_of(t);
  if (runs.count > kMostRuns) {
    const std::int64_t before = vramfit_value_known(address_of(t), extent_bytes(t));
    const bool stays = before != VRAMFIT_UNKNOWN && assumptions != VRAMFIT_UNKNOWN;
    return vramfit_value_set(address_of(t), extent_bytes(t), stays ? before | assumptions : VRAMFIT_UNKNOWN);
  }
  each_run(t, runs, [&](char* address, std::int64_t bytes) {
    vramfit_value_set(address, bytes, assumptions);
    return true;
  });
}

inline constexpr std::int64_t kMostExtentBytes = std::int64_t{1} << 28;  // of small tensors that lie far apart

/// The same elements as a tensor of the CPU, which shares their bytes.
inline std::optional<at::Tensor> host_view(const at::Tensor& t) {
  const auto options = at::TensorOptions().dtype(t.dtype());
  if (t.numel() == 0) return at::detail::empty_strided_cpu(t.sizes(), t.strides(), options);
  void* const data = vramfit_value_view(address_of(t), extent_bytes(t), kMostExtentBytes);
  if (data == nullptr) return std::nullopt;
  return at::from_blob(data, t.sizes(), t.strides(), options);
}

}  // namespace vramfit::values
