// How much memory a plan of cuFFT works in, at most.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace vramfit::phantom::cufft {

/// For `batch` transforms of `sizes`, with complex numbers of `complex_bytes`; 0 if a size is none.
///
/// Sizes that are products of 2, 3, 5 and 7 were seen to take as much as the complex data
/// (https://github.com/arrayfire/arrayfire/issues/1443: 80 KB for 100 x 100; JuliaGPU/CUDA.jl issue 894: 64 MiB for 32
/// of 512 x 512). cuFFT's documentation (cufftEstimate1d) says that large primes may take up to eight times as much.
inline std::int64_t most_bytes(std::span<const long long> sizes, long long batch, std::int64_t complex_bytes) {
  constexpr std::int64_t kOfPrimes = 8;
  std::int64_t bytes = complex_bytes;
  bool is_smooth = true;
  const auto times = [&](long long count) {
    if (count < 1 || __builtin_mul_overflow(bytes, static_cast<std::int64_t>(count), &bytes)) bytes = 0;
  };
  for (long long size : sizes) {
    times(size);
    for (const int factor : {2, 3, 5, 7}) {
      while (size > 0 && size % factor == 0) size /= factor;
    }
    is_smooth = is_smooth && size == 1;
  }
  times(batch);
  if (!is_smooth) times(kOfPrimes);
  return bytes;
}

}  // namespace vramfit::phantom::cufft
