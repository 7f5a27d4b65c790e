// Mixtures of experts are counted for PyTorch's runtimes alone: the engine has no kernels, and no plan for it has one.
#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

const DeviceFunctions rows::experts{};

}  // namespace vramfit::kernels
