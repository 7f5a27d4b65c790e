#include "phantom/nccl/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace vramfit::phantom {

namespace {

// How a type is calculated with: narrow floats in fp32, integers as unsigned so that they wrap.
template <typename T>
struct Arithmetic {
  using Wide = T;
  static Wide load(T value) { return value; }
  static T store(Wide value) { return value; }
};
template <>
struct Arithmetic<__half> {
  using Wide = float;
  static float load(__half value) { return __half2float(value); }
  static __half store(float value) { return __float2half_rn(value); }
};
template <>
struct Arithmetic<__nv_bfloat16> {
  using Wide = float;
  static float load(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __nv_bfloat16 store(float value) { return __float2bfloat16_rn(value); }
};
template <>
struct Arithmetic<__nv_fp8_e4m3> {
  using Wide = float;
  static float load(__nv_fp8_e4m3 value) { return static_cast<float>(value); }
  static __nv_fp8_e4m3 store(float value) { return __nv_fp8_e4m3(value); }
};
template <>
struct Arithmetic<__nv_fp8_e5m2> {
  using Wide = float;
  static float load(__nv_fp8_e5m2 value) { return static_cast<float>(value); }
  static __nv_fp8_e5m2 store(float value) { return __nv_fp8_e5m2(value); }
};

template <typename T>
T element(const std::byte* values, std::int64_t index) {
  T value;
  std::memcpy(&value, values + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename Wide>
Wide times(Wide a, Wide b) {
  if constexpr (std::is_integral_v<Wide>) {
    using Unsigned = std::make_unsigned_t<Wide>;  // 64 bits keep 8-bit products from being promoted to a signed int
    return static_cast<Wide>(static_cast<Unsigned>(std::uint64_t{static_cast<Unsigned>(a)} * static_cast<Unsigned>(b)));
  } else {
    return a * b;
  }
}

template <typename Wide>
Wide plus(Wide a, Wide b) {
  if constexpr (std::is_integral_v<Wide>) {
    using Unsigned = std::make_unsigned_t<Wide>;
    return static_cast<Wide>(static_cast<Unsigned>(std::uint64_t{static_cast<Unsigned>(a)} + static_cast<Unsigned>(b)));
  } else {
    return a + b;
  }
}

template <typename Wide>
Wide combined(Combine combine, Wide a, Wide b) {
  switch (combine) {
    case Combine::product:
      return times(a, b);
    case Combine::maximum:
      return std::max(a, b);
    case Combine::minimum:
      return std::min(a, b);
    case Combine::sum:
    case Combine::average:
      break;
  }
  return plus(a, b);
}

template <typename T>
typename Arithmetic<T>::Wide scaled(const Part& part, std::int64_t index) {
  const auto value = Arithmetic<T>::load(element<T>(part.values, index));
  if (part.scale == nullptr) return value;
  return times(value, Arithmetic<T>::load(element<T>(part.scale, 0)));
}

template <typename T>
void put(std::byte* out, std::int64_t index, typename Arithmetic<T>::Wide value) {
  const T narrow = Arithmetic<T>::store(value);
  std::memcpy(out + index * static_cast<std::int64_t>(sizeof(T)), &narrow, sizeof(T));
}

template <typename Wide>
Wide averaged(const Reduction& reduction, Wide value, std::int64_t ranks) {
  return reduction.combine == Combine::average ? static_cast<Wide>(value / static_cast<Wide>(ranks)) : value;
}

struct Ranks {
  template <typename T>
  static void run(const Reduction& reduction, std::span<const Part> parts, std::int64_t count, std::byte* out) {
    for (std::int64_t i = 0; i < count; ++i) {
      auto value = scaled<T>(parts[0], i);
      for (const Part& part : parts.subspan(1)) value = combined(reduction.combine, value, scaled<T>(part, i));
      put<T>(out, i, averaged(reduction, value, static_cast<std::int64_t>(parts.size())));
    }
  }
};

// Sums of equal values are products, so that 512 ranks cost no more than one.
template <typename T>
typename Arithmetic<T>::Wide equal_values(Combine combine, typename Arithmetic<T>::Wide value, std::int64_t ranks) {
  using Wide = typename Arithmetic<T>::Wide;
  if (combine == Combine::sum) return times(value, static_cast<Wide>(ranks));
  Wide result = value;
  if (combine == Combine::product) {
    for (std::int64_t rank = 1; rank < ranks; ++rank) result = times(result, value);
  }
  return result;
}

struct EqualRanks {
  template <typename T>
  static void run(const Reduction& reduction, Part part, std::int64_t ranks, std::int64_t count, std::byte* out) {
    for (std::int64_t i = 0; i < count; ++i) {
      put<T>(out, i, equal_values<T>(reduction.combine, scaled<T>(part, i), ranks));
    }
  }
};

template <typename Kernel, typename... Arguments>
void for_type(ncclDataType_t type, const Arguments&... arguments) {
  switch (type) {
    case ncclInt8:
      return Kernel::template run<std::int8_t>(arguments...);
    case ncclUint8:
      return Kernel::template run<std::uint8_t>(arguments...);
    case ncclInt32:
      return Kernel::template run<std::int32_t>(arguments...);
    case ncclUint32:
      return Kernel::template run<std::uint32_t>(arguments...);
    case ncclInt64:
      return Kernel::template run<std::int64_t>(arguments...);
    case ncclUint64:
      return Kernel::template run<std::uint64_t>(arguments...);
    case ncclFloat16:
      return Kernel::template run<__half>(arguments...);
    case ncclFloat32:
      return Kernel::template run<float>(arguments...);
    case ncclFloat64:
      return Kernel::template run<double>(arguments...);
    case ncclBfloat16:
      return Kernel::template run<__nv_bfloat16>(arguments...);
    case ncclFloat8e4m3:
      return Kernel::template run<__nv_fp8_e4m3>(arguments...);
    case ncclFloat8e5m2:
      return Kernel::template run<__nv_fp8_e5m2>(arguments...);
    case ncclNumTypes:
      return;
  }
}

struct Type {
  const char* name;
  std::int64_t bytes;
};
constexpr std::array<Type, ncclNumTypes> kTypes{{{"int8", 1},
                                                 {"uint8", 1},
                                                 {"int32", 4},
                                                 {"uint32", 4},
                                                 {"int64", 8},
                                                 {"uint64", 8},
                                                 {"float16", 2},
                                                 {"float32", 4},
                                                 {"float64", 8},
                                                 {"bfloat16", 2},
                                                 {"float8 e4m3", 1},
                                                 {"float8 e5m2", 1}}};

bool is_type(ncclDataType_t type) { return static_cast<unsigned>(type) < kTypes.size(); }

}  // namespace

std::int64_t element_bytes(ncclDataType_t type) { return is_type(type) ? kTypes[type].bytes : 0; }
const char* type_name(ncclDataType_t type) { return is_type(type) ? kTypes[type].name : "unknown type"; }

void reduce(const Reduction& reduction, std::span<const Part> parts, std::int64_t count, std::byte* out) {
  if (!parts.empty()) for_type<Ranks>(reduction.type, reduction, parts, count, out);
}

void reduce_equal(const Reduction& reduction, Part part, std::int64_t ranks, std::int64_t count, std::byte* out) {
  for_type<EqualRanks>(reduction.type, reduction, part, ranks, count, out);
}

}  // namespace vramfit::phantom
