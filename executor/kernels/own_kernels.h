// The library of own CUDA kernels, which is built where nvcc is (docs/kernels.md): found beside the program when a job
// asks for it, so that nothing depends on it otherwise.
#pragma once

#include <string>

#include "executor/kernels/kernels.h"

namespace vramfit {

/// Where it lies if it was built.
std::string own_kernels_path();
/// Null if it isn't there, or is another version's.
const cuda::Kernels* own_kernels();
/// Tests: those that CPUs run in their place (tests/executor/kernels); null: the library's again.
void use_own_kernels(const cuda::Kernels* kernels);

}  // namespace vramfit
