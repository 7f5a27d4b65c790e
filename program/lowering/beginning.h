// The beginning of a job's program, for one who asks whether what it needs until then is too much already.
#pragma once

#include <cstddef>

#include "program/lowering/lower.h"

namespace vramfit::program {

/// Load, and the first micro-batch up to its first `backward_passes` backward passes, or all of it if it has no more.
/// Its instructions begin as those of lower(), so what it asks an allocator for is the beginning of what that asks for.
/// What is to be freed later is still there at its end. Nothing is saved. Throws NotModelled as lower() does.
Program lower_beginning(const LowerInputs& inputs, std::size_t backward_passes);

}  // namespace vramfit::program
