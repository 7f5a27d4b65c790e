// The most that a program's activations take at once.
#pragma once

#include "program/program.h"

namespace vramfit {

/// Of buffers in the card's own memory that hold activations, logits or what the loss makes of them, by their requests.
/// Sections that are repeated are passed through once. At most folded_peaks().requested.
Bytes peak_activations(const program::Program& program);

}  // namespace vramfit
