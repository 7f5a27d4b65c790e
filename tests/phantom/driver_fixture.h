// A thread with the first card's primary context.
#pragma once

#include <cuda.h>
#include <doctest/doctest.h>

#include <cstddef>

namespace vramfit::phantom_test {

struct Driver {
  CUcontext context = nullptr;
  Driver() {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }
  ~Driver() {
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease(0);
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  static CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr made = 0;
    REQUIRE(cuMemAlloc(&made, bytes) == CUDA_SUCCESS);
    return made;
  }
};

}  // namespace vramfit::phantom_test
