#include "phantom/nccl/reduce.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <vector>

namespace vramfit::phantom {

namespace {

template <typename T>
std::vector<T> reduced(const Reduction& reduction, const std::vector<std::vector<T>>& ranks, const T* scale = nullptr) {
  std::vector<Part> parts;
  for (const auto& values : ranks) {
    parts.push_back({reinterpret_cast<const std::byte*>(values.data()), reinterpret_cast<const std::byte*>(scale)});
  }
  std::vector<T> out(ranks[0].size());
  reduce(reduction, parts, static_cast<std::int64_t>(out.size()), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

template <typename T>
std::vector<T> reduced_equal(const Reduction& reduction, const std::vector<T>& values, std::int64_t ranks) {
  std::vector<T> out(values.size());
  reduce_equal(reduction, {reinterpret_cast<const std::byte*>(values.data()), nullptr}, ranks,
               static_cast<std::int64_t>(values.size()), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

// Three ranks of {2, 3, 4} and so on in any type, as floats.
template <typename T>
void check_small_integers(ncclDataType_t type) {
  CAPTURE(type_name(type));
  CHECK(element_bytes(type) == sizeof(T));
  struct Case {
    Combine combine;
    float expected;
  };
  for (const auto [combine, expected] : {Case{Combine::sum, 9}, Case{Combine::product, 24}, Case{Combine::maximum, 4},
                                         Case{Combine::minimum, 2}, Case{Combine::average, 3}}) {
    CAPTURE(static_cast<int>(combine));
    const auto out = reduced<T>({type, combine}, {{T(2.0F)}, {T(3.0F)}, {T(4.0F)}});
    CHECK(static_cast<float>(out[0]) == static_cast<float>(T(expected)));  // 9 is 8 in e5m2
    const auto equal = reduced<T>({type, combine}, {{T(2.0F)}, {T(2.0F)}, {T(2.0F)}});
    CHECK(static_cast<float>(reduced_equal<T>({type, combine}, {T(2.0F)}, 3)[0]) == static_cast<float>(equal[0]));
  }
}

}  // namespace

TEST_CASE("every reduction of three ranks gives the value that arithmetic gives, in every type") {
  check_small_integers<std::int8_t>(ncclInt8);
  check_small_integers<std::uint8_t>(ncclUint8);
  check_small_integers<std::int32_t>(ncclInt32);
  check_small_integers<std::uint32_t>(ncclUint32);
  check_small_integers<std::int64_t>(ncclInt64);
  check_small_integers<std::uint64_t>(ncclUint64);
  check_small_integers<__half>(ncclFloat16);
  check_small_integers<float>(ncclFloat32);
  check_small_integers<double>(ncclFloat64);
  check_small_integers<__nv_bfloat16>(ncclBfloat16);
  check_small_integers<__nv_fp8_e4m3>(ncclFloat8e4m3);
  check_small_integers<__nv_fp8_e5m2>(ncclFloat8e5m2);
}

TEST_CASE("a 16-bit sum is rounded once, not at every rank") {
  // 256 + 1 rounds back to 256 in bf16 each time; 256 + 8 * 1 is 264 exactly.
  std::vector<std::vector<__nv_bfloat16>> ranks(9, {__nv_bfloat16(1.0F)});
  ranks[0] = {__nv_bfloat16(256.0F)};
  CHECK(static_cast<float>(reduced<__nv_bfloat16>({ncclBfloat16, Combine::sum}, ranks)[0]) == 264.0F);
}

TEST_CASE("integers wrap around as on a card") {
  CHECK(reduced<std::int8_t>({ncclInt8, Combine::sum}, {{127}, {1}})[0] == -128);
  CHECK(reduced<std::int32_t>({ncclInt32, Combine::product}, {{1 << 30}, {4}})[0] == 0);
  CHECK(reduced<std::int64_t>({ncclInt64, Combine::sum}, {{INT64_MAX}, {1}})[0] == INT64_MIN);
  CHECK(reduced_equal<std::int8_t>({ncclInt8, Combine::sum}, {100}, 512)[0] == 0);
}

TEST_CASE("a pre-multiplied sum multiplies each rank's value first") {
  const float scale = 0.5F;
  CHECK(reduced<float>({ncclFloat32, Combine::sum}, {{2, 10}, {4, 20}}, &scale) == std::vector<float>{3, 15});
}

TEST_CASE("a value that is no type has no size") { CHECK(element_bytes(static_cast<ncclDataType_t>(12)) == 0); }

}  // namespace vramfit::phantom
