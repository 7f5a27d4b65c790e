// What torch.compile's code generator (Inductor) makes of a recorded step: calls between two products become kernels
// that read what they need once and write only what others need.
#pragma once

#include "program/program.h"

namespace vramfit::eager {

/// Changes the work of forward and backward. Products, attention, embeddings, complex products, which Inductor leaves
/// to ATen, and FSDP's and the optimizer's calls stay as they are. A value that only generated kernels read is computed
/// anew by each instead of being stored, unless that reads clearly more than the value has.
void fuse_calls(program::Program& program);

}  // namespace vramfit::eager
