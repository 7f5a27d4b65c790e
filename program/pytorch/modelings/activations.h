// Activations as transformers 5.23 computes them (activations.py).
#pragma once

#include "model_specs/spec.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

/// `is_composed`: gelu_new, of many calls. Throws std::logic_error for relu, which callers refuse.
Tensor activated(Torch& torch, const Tensor& x, Activation activation, bool is_composed);

}  // namespace vramfit::eager
