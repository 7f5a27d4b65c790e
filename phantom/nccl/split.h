// Communicators made of others: which ranks a new one has, and this rank's place among them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <nccl.h>

#include "phantom/nccl/communicator.h"

namespace vramfit::phantom {

/// Tells the other ranks this one's color and key; returns the split's number. Never waits.
std::uint64_t announce_split(Communicator& parent, int color, int key);

/// The place in the new communicator, once all ranks have told theirs; none for NCCL_SPLIT_NOCOLOR.
/// Ghosts are taken to have given the same color and key, unless the program said which ranks the split has. Throws
/// FaultError naming who is missing.
std::optional<Communicator::Place> split_place(Communicator& parent, std::uint64_t number, int color, int key);

/// What the thread's next split with ghosts will consist of, by the parent's ranks; none: not known.
void tell_split_ranks(std::vector<int> ranks);

/// Without the excluded ranks, whose own calls are not needed. None if this rank is excluded or a rank does not exist.
std::optional<Communicator::Place> shrunk_place(Communicator& parent, std::span<const int> excluded);

/// A short text made of any bytes (FNV-1a, 64 bits): an id that all ranks make alike.
std::string digest(std::span<const char> bytes);

}  // namespace vramfit::phantom
