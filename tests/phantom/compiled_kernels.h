// Device code compiled by the real NVRTC, which needs no GPU.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace vramfit::phantom_test {

struct Compiled {
  std::vector<std::byte> cubin;
  std::string ptx;
};

/// `capability`: 90. Throws with the compiler's log.
Compiled compile(const std::string& source, int capability = 90);

/// Kernels and variables that several tests use: extern "C", see the source.
const Compiled& sample();

}  // namespace vramfit::phantom_test
