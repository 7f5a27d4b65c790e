// A rank's program, as it is about to be run.
#pragma once

#include "program/lowering/lower.h"

namespace vramfit {

/// Throws std::logic_error when the check finds a fault in it: nothing is trained by such a program.
program::Program program_to_train(const program::LowerInputs& inputs);

}  // namespace vramfit
