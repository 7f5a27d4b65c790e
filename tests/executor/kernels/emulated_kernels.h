// The library's functions as CPUs run them, for a test case.
#pragma once

#include "executor/kernels/own_kernels.h"

extern "C" const vramfit::cuda::Kernels* vramfit_kernels(int interface_version);

namespace vramfit::emulated {
void run_backwards(bool backwards);  // tests/executor/kernels/emulated_cuda.h
}

namespace vramfit::testing {

class EmulatedKernels {
 public:
  /// Threads take turns from the first to the last, or backwards.
  explicit EmulatedKernels(bool backwards = false) {
    use_own_kernels(vramfit_kernels(cuda::kInterface));
    emulated::run_backwards(backwards);
  }
  ~EmulatedKernels() {
    use_own_kernels(nullptr);
    emulated::run_backwards(false);
  }
  EmulatedKernels(const EmulatedKernels&) = delete;
  EmulatedKernels& operator=(const EmulatedKernels&) = delete;
  EmulatedKernels(EmulatedKernels&&) = delete;
  EmulatedKernels& operator=(EmulatedKernels&&) = delete;
};

}  // namespace vramfit::testing
