// How far GELU on a GPU may be from that of CPU ranks.
#pragma once

#include <string>

#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

/// Of a gated GELU: which of the output and the two gradients is farther from that of CPU ranks than CUDA's tanh and
/// erf allow; "": none.
std::string gelu_apart(const OpCase& op, const OpResult& own, const OpResult& cpu);

}  // namespace vramfit::testing
