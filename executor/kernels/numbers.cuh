// For kernels' sources: numbers of 16 and 32 bits, and several of them read or written at once.
#pragma once

#include "executor/kernels/launch.cuh"
#include "executor/optimizers/on_both.h"

namespace vramfit::cuda {

struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Bfloat16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16U); }
__device__ inline float to_float(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }

constexpr std::uint16_t kNanOfBfloat16 = 0x7FC0;

/// To the nearest, to even.
template <typename T>
__device__ T rounded(float x);
template <>
__device__ inline float rounded(float x) {
  return x;
}
template <>
__device__ inline Bfloat16 rounded(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  const std::uint32_t nearest = (bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U;
  return {x == x ? static_cast<std::uint16_t>(nearest) : kNanOfBfloat16};
}
template <>
__device__ inline Float16 rounded(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}

/// As many as a thread reads at once: 16 bytes, or fewer.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount > 16 ? 16 : sizeof(T) * kCount) Pack {
  T at[kCount];
};

/// Of numbers that begin at a multiple of the pack's bytes.
template <int kCount, typename T>
__device__ Pack<T, kCount> read(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, typename T>
__device__ void write(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

/// kCount elements from `begin` on, of which `there` are there.
template <int kCount>
struct Part {
  std::int64_t begin, there;
  bool is_aligned;  // whether packs can be read and written at once

  template <typename T>
  __device__ Pack<T, kCount> read(const T* from) const {
    if (is_aligned && there >= kCount) return cuda::read<kCount>(from + begin);
    Pack<T, kCount> pack{};
    for (int i = 0; i < kCount; ++i) {
      if (i < there) pack.at[i] = from[begin + i];
    }
    return pack;
  }
  template <typename T>
  __device__ void write(T* to, const Pack<T, kCount>& pack) const {
    if (is_aligned && there >= kCount) return cuda::write(to + begin, pack);
    for (int i = 0; i < kCount; ++i) {
      if (i < there) to[begin + i] = pack.at[i];
    }
  }
};

/// Whether packs of kCount can be read and written at once from here on.
template <int kCount, typename T>
bool begins_with_pack(const T* at) {
  return reinterpret_cast<std::uintptr_t>(at) % alignof(Pack<T, kCount>) == 0;
}

/// Numbers of a kind that isn't known when the kernel is compiled. All threads of a kernel have one kind, so none waits
/// for the others.
struct AnyNumbers {
  const void* at;
  Number number;

  __device__ float operator[](std::int64_t i) const {
    if (number == Number::f32) return static_cast<const float*>(at)[i];
    return number == Number::bf16 ? to_float(static_cast<const Bfloat16*>(at)[i])
                                  : to_float(static_cast<const Float16*>(at)[i]);
  }

  /// kCount of them from `begin` on, where a pack begins.
  template <int kCount>
  __device__ Pack<float, kCount> pack(std::int64_t begin) const {
    if (number == Number::f32) return read<kCount>(static_cast<const float*>(at) + begin);
    return number == Number::bf16 ? widened(read<kCount>(static_cast<const Bfloat16*>(at) + begin))
                                  : widened(read<kCount>(static_cast<const Float16*>(at) + begin));
  }

 private:
  template <typename T, int kCount>
  static __device__ Pack<float, kCount> widened(const Pack<T, kCount>& pack) {
    Pack<float, kCount> wide;
    for (int i = 0; i < kCount; ++i) wide.at[i] = to_float(pack.at[i]);
    return wide;
  }
};

VRAMFIT_ON_BOTH inline std::int64_t bytes_of(Number number) { return number == Number::f32 ? 4 : 2; }

/// An update's gradients from `offset` on.
template <typename Update>
VRAMFIT_ON_BOTH AnyNumbers gradients_from(const Update& update, std::int64_t offset) {
  const auto* const begin = static_cast<const std::uint8_t*>(update.gradients);
  return {begin + offset * bytes_of(update.gradient), update.gradient};
}

/// Whether packs of kCount can be read at once from here on.
template <int kCount>
bool begins_with_pack(const AnyNumbers& numbers) {
  const std::int64_t bytes = std::min<std::int64_t>(16, kCount * bytes_of(numbers.number));
  return reinterpret_cast<std::uintptr_t>(numbers.at) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// Calls visit(part) for all packs of the elements that are the thread's.
template <int kCount, typename Visit>
__device__ void each_part(std::int64_t elements, bool is_aligned, const Visit& visit) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t begin = thread * kCount; begin < elements; begin += step * kCount) {
    visit(Part<kCount>{begin, elements - begin, is_aligned});
  }
}

/// What is there and a number, or the number alone.
template <typename T>
__device__ T put(T there, float value, bool add) {
  return rounded<T>(add ? to_float(there) + value : value);
}

/// Bytes that begin anywhere, and of which there may be fewer: at once where that is possible.
template <int kCount>
__device__ Pack<std::uint8_t, kCount> read_bytes(const std::uint8_t* from, std::int64_t there) {
  if (there >= kCount && reinterpret_cast<std::uintptr_t>(from) % kCount == 0) return read<kCount>(from);
  Pack<std::uint8_t, kCount> pack{};
  for (int i = 0; i < kCount && i < there; ++i) pack.at[i] = from[i];
  return pack;
}

/// Of all threads of a warp, which all ask for it.
__device__ inline std::int32_t largest_of_warp(std::int32_t largest) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    largest = std::max(largest, __shfl_xor_sync(kAll, largest, distance));
  }
  return largest;
}

/// Calls `f` with a number of the kind, for its type.
template <typename F>
int with_number(Number number, const F& f) {
  if (number == Number::f16) return f(Float16{});
  return number == Number::f32 ? f(float{}) : f(Bfloat16{});
}

}  // namespace vramfit::cuda
