// The program of a job, whatever runtime it is for.
#pragma once

#include "program/lowering/lower.h"

namespace vramfit::program {

/// Lowered for runtime vramfit; recorded, and for rank 0 alone, for PyTorch's. Throws NotModelled for features without
/// rules.
Program make_program(const LowerInputs& inputs);

}  // namespace vramfit::program
