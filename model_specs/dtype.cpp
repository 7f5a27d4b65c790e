#include "model_specs/dtype.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array kDtypeRows{
    Row{Dtype::f32, "fp32", 4},         Row{Dtype::bf16, "bf16", 2},        Row{Dtype::f16, "fp16", 2},
    Row{Dtype::f8_e4m3, "fp8-e4m3", 1}, Row{Dtype::f8_e5m2, "fp8-e5m2", 1}, Row{Dtype::i64, "int64", 8},
    Row{Dtype::i32, "int32", 4},        Row{Dtype::u8, "uint8", 1},
};

// The spellings of PyTorch ("float8_e4m3fn"), safetensors ("F8_E4M3") and users.
struct Alias {
  std::string_view name;
  Dtype dtype;
};
constexpr std::array kAliases{
    Alias{"float32", Dtype::f32},
    Alias{"float", Dtype::f32},
    Alias{"F32", Dtype::f32},
    Alias{"bfloat16", Dtype::bf16},
    Alias{"BF16", Dtype::bf16},
    Alias{"float16", Dtype::f16},
    Alias{"half", Dtype::f16},
    Alias{"F16", Dtype::f16},
    Alias{"float8_e4m3fn", Dtype::f8_e4m3},
    Alias{"F8_E4M3", Dtype::f8_e4m3},
    Alias{"float8_e5m2", Dtype::f8_e5m2},
    Alias{"F8_E5M2", Dtype::f8_e5m2},
    Alias{"I64", Dtype::i64},
    Alias{"I32", Dtype::i32},
    Alias{"U8", Dtype::u8},
};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kDtypeRows.size(); ++i) {
    if (static_cast<std::size_t>(kDtypeRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(is_in_order(), "a row is found by its place");

const Row& row(Dtype dtype) { return kDtypeRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

Bytes dtype_bytes(Dtype dtype) { return Bytes{row(dtype).bytes}; }

std::string_view dtype_name(Dtype dtype) { return row(dtype).name; }

Dtype parse_dtype(std::string_view name) {
  std::vector<std::string> known;
  for (const Row& r : kDtypeRows) {
    if (r.name == name) return r.dtype;
    known.emplace_back(r.name);
  }
  for (const Alias& alias : kAliases) {
    if (alias.name == name) return alias.dtype;
  }
  throw InputError(fmt::format("dtype \"{}\": unknown{}", printable(name), did_you_mean(printable(name), known)));
}

}  // namespace vramfit
