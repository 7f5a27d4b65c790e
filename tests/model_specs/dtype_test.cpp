#include "model_specs/dtype.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace vramfit {

TEST_CASE("a dtype is read by every name the field uses and written by one") {
  for (const char* name : {"bf16", "bfloat16", "BF16"}) CHECK(parse_dtype(name) == Dtype::bf16);
  for (const char* name : {"fp32", "float32", "float", "F32"}) CHECK(parse_dtype(name) == Dtype::f32);
  for (const char* name : {"fp16", "float16", "half", "F16"}) CHECK(parse_dtype(name) == Dtype::f16);
  CHECK(dtype_name(Dtype::f8_e4m3) == "fp8-e4m3");
  CHECK(dtype_bytes(Dtype::f8_e4m3) == Bytes{1});
  CHECK(dtype_bytes(Dtype::i64) == Bytes{8});
}

TEST_CASE("an unknown dtype is refused with a suggestion") {
  CHECK_THROWS_WITH_AS(parse_dtype("bff16"), doctest::Contains("did you mean \"bf16\"?"), InputError);
}

}  // namespace vramfit
