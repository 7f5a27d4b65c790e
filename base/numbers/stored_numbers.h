// Numbers as a checkpoint stores them: little endian, at any alignment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace vramfit {

enum class StoredFloat { f32, bf16, f16 };

/// The type that safetensors calls `name`, if its numbers can be read here.
std::optional<StoredFloat> stored_float(std::string_view name);
std::int64_t stored_bytes(StoredFloat type);

struct StoredNumbers {
  StoredFloat type = StoredFloat::f32;
  const char* data = nullptr;
  std::int64_t count = 0;
};

/// Widens `into.size()` numbers from element `first` on; exact.
void widen_numbers(const StoredNumbers& numbers, std::int64_t first, std::span<float> into);

/// Writes numbers as `type`, rounded to nearest, ties to even; too large ones become infinite.
void narrow_numbers(std::span<const float> numbers, StoredFloat type, char* into);

}  // namespace vramfit
