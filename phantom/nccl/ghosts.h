// What a rank played alone gets from the others: as if each had sent what the played one sent.
#pragma once

#include <span>

#include "phantom/nccl/operation.h"

namespace vramfit::phantom {

/// Carries out a small operation of a communicator whose other ranks are ghosts, and counts the answer.
/// `group`: the operations issued together with it, where a receive looks for what the played rank sends.
void answer_as_ghosts(const Operation& operation, std::span<const Operation> group);

}  // namespace vramfit::phantom
