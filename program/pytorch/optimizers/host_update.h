// Clipping and AdamW of parameters, gradients and states in host memory, by PyTorch's CPU functions: nothing of it is
// on the card, but for copies that gathers and reductions make.
#pragma once

#include "program/pytorch/wrappers/wrapper.h"

namespace vramfit::eager {

/// clip_grad_norm_ of gradients in host memory. Their norm is summed over ranks through the host's process group, in
/// messages of a few bytes, which are left out.
void clip_on_host(Heap& heap, Wrapper& wrapper);

/// torch.optim.AdamW with states in memory as any other (zeros_like), made at the first step.
void adamw_on_host(Heap& heap, Wrapper& wrapper, Dtype state);

}  // namespace vramfit::eager
