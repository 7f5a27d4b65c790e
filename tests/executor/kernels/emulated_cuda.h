// Stands for CUDA's headers where the sources of executor/kernels are compiled for CPUs (included before all else):
// what they use of the language and of the functions of a GPU, over fibers. A block's threads run by turns until all of
// them, or all of a warp, have come to the same barrier; blocks run one after the other.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,cppcoreguidelines-macro-usage): CUDA's names
#define __global__
#define __device__
#define __grid_constant__
#define __shared__ static
#define __launch_bounds__(...)

namespace vramfit::emulated {

struct Place {
  unsigned x = 0;
};

/// Calls the kernel once for each thread of each block. Throws std::logic_error where threads wait for each other at
/// different places.
void run(unsigned blocks, int threads, const std::function<void()>& kernel);

/// From the last thread to the first instead: what depends on the order lacks a barrier.
void run_backwards(bool backwards);

void wait_for_block();
/// What the warp's thread `lane` gave; all threads of the warp take part.
std::int32_t exchange(std::int32_t given, unsigned lane);

/// To the nearest, to even, as a GPU does.
std::uint16_t to_half(float x);
float from_half(std::uint16_t bits);

}  // namespace vramfit::emulated

extern vramfit::emulated::Place threadIdx, blockIdx, blockDim, gridDim;

struct __half {
  std::uint16_t bits;
};

inline void __syncthreads() { vramfit::emulated::wait_for_block(); }
inline std::int32_t __shfl_xor_sync(unsigned /*all*/, std::int32_t value, int mask) {
  return vramfit::emulated::exchange(value, (threadIdx.x % 32) ^ static_cast<unsigned>(mask));
}
inline std::int32_t atomicMax(std::int32_t* largest, std::int32_t value) {
  const std::int32_t before = *largest;
  if (before < value) *largest = value;
  return before;
}
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline float __int_as_float(std::int32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
inline std::int32_t __float_as_int(float x) { return std::bit_cast<std::int32_t>(x); }
inline std::int64_t __double_as_longlong(double x) { return std::bit_cast<std::int64_t>(x); }
inline double __longlong_as_double(std::int64_t bits) { return std::bit_cast<double>(bits); }
inline __half __ushort_as_half(std::uint16_t bits) { return {bits}; }
inline std::uint16_t __half_as_ushort(__half x) { return x.bits; }
inline __half __float2half_rn(float x) { return {vramfit::emulated::to_half(x)}; }
inline float __half2float(__half x) { return vramfit::emulated::from_half(x.bits); }
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,cppcoreguidelines-macro-usage)
