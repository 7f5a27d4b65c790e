// Whether the GPUs of this process are phantoms (docs/phantom.md).
#pragma once

namespace vramfit {

/// True when the CUDA libraries of this process are stand-ins: asked of the loader, not of an environment variable.
bool gpus_are_phantoms();

}  // namespace vramfit
