// Element types and their common names.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/text/units.h"

namespace vramfit {

enum class Dtype : std::uint8_t { f32, bf16, f16, f8_e4m3, f8_e5m2, i64, i32, u8 };

/// Bytes of one element.
Bytes dtype_bytes(Dtype dtype);

/// "fp32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "int64", "int32", "uint8".
std::string_view dtype_name(Dtype dtype);

/// Parses the names above and the aliases float32, bfloat16, float16, half, F32, BF16, F16, ...;
/// throws InputError that lists the known names.
Dtype parse_dtype(std::string_view name);

}  // namespace vramfit
