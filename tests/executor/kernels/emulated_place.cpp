#include "executor/kernels/own_kernels.h"
#include "tests/executor/kernels/kernel_place_torch.h"

extern "C" const vramfit::cuda::Kernels* vramfit_kernels(int interface_version);

namespace vramfit::emulated {
void run_backwards(bool backwards);  // tests/executor/kernels/emulated_cuda.h
}

namespace vramfit::testing {

at::Device kernel_device() { return at::kCPU; }
int multiprocessors() { return 0; }

PlacedKernels::PlacedKernels(bool backwards) {
  use_own_kernels(vramfit_kernels(cuda::kInterface));
  emulated::run_backwards(backwards);
}
PlacedKernels::~PlacedKernels() {
  use_own_kernels(nullptr);
  emulated::run_backwards(false);
}

}  // namespace vramfit::testing
