// What the tests of kernels stand on: threads of a block that wait for each other, and numbers of 16 bits.
#include "tests/executor/kernels/emulated_cuda.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

namespace vramfit::testing {

TEST_CASE("threads go on from a barrier when all of the block have come to it, in either order") {
  for (const bool backwards : {false, true}) {
    emulated::run_backwards(backwards);
    std::vector<int> counts(64), seen(64);
    emulated::run(1, 64, [&] {
      counts[threadIdx.x] = 1;
      __syncthreads();
      for (const int count : counts) seen[threadIdx.x] += count;
    });
    CHECK(seen == std::vector<int>(64, 64));
  }
  emulated::run_backwards(false);
}

TEST_CASE("what depends on the order of threads for lack of a barrier differs between the two orders") {
  const auto sum_without_barrier = [](bool backwards) {
    emulated::run_backwards(backwards);
    int written = 0;
    std::vector<int> seen(64);
    emulated::run(1, 64, [&] {
      if (threadIdx.x == 0) written = 1;
      seen[threadIdx.x] = written;
    });
    emulated::run_backwards(false);
    return seen;
  };
  CHECK(sum_without_barrier(false) != sum_without_barrier(true));
}

TEST_CASE("a warp exchanges values while other warps are elsewhere") {
  std::vector<int> largest(96);
  emulated::run(1, 96, [&] {
    const auto thread = static_cast<int>(threadIdx.x);
    int value = thread;
    const int rounds = thread < 32 ? 5 : 0;  // the first warp alone
    for (int i = 0; i < rounds; ++i) value = std::max(value, __shfl_xor_sync(0xFFFFFFFFU, value, 1 << i));
    __syncthreads();
    largest[threadIdx.x] = value;
  });
  for (int thread = 0; thread < 96; ++thread)
    CHECK(largest[static_cast<std::size_t>(thread)] == (thread < 32 ? 31 : thread));
}

TEST_CASE("threads that wait at different places for good are an error") {
  CHECK_THROWS_AS(emulated::run(1, 64,
                                [] {
                                  if (threadIdx.x == 3) {
                                    __syncthreads();
                                  } else {
                                    __shfl_xor_sync(0xFFFFFFFFU, 1, 1);
                                  }
                                }),
                  std::logic_error);
}

TEST_CASE("numbers of 16 bits are rounded as LibTorch rounds them") {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const at::Half truth(half, at::Half::from_bits());
    const auto value = static_cast<float>(truth);
    if (std::isnan(value)) {
      CHECK(std::isnan(emulated::from_half(half)));
      continue;
    }
    REQUIRE(emulated::from_half(half) == value);
    // The number itself, halfway to its neighbours and a little beside that.
    const float next = static_cast<float>(at::Half(static_cast<std::uint16_t>(half + 1), at::Half::from_bits()));
    const float middle = std::isfinite(next) ? (value + next) / 2 : value;
    for (const float x : {value, middle, std::nextafter(middle, next), std::nextafter(middle, value)}) {
      if (std::isfinite(x)) REQUIRE(emulated::to_half(x) == static_cast<at::Half>(x).x);
    }
  }
  CHECK(std::isnan(emulated::from_half(emulated::to_half(NAN))));
  CHECK(emulated::to_half(70000.0F) == static_cast<at::Half>(70000.0F).x);
  CHECK(emulated::to_half(1e-9F) == 0);
}

}  // namespace vramfit::testing
