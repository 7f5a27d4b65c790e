// What the exported functions share.
#pragma once

#include <nccl.h>

#include "phantom/core/visibility.h"
#include "phantom/nccl/communicator.h"
#include "phantom/nccl/group.h"

struct ncclComm : vramfit::phantom::Communicator {
  using Communicator::Communicator;
};

namespace vramfit::phantom {

/// Null if it is no communicator of this process.
ncclComm* communicator_of(ncclComm_t handle);
/// Whose processes the others are: ghosts if the session plays one rank only.
Others others_of_session();
/// `shares` tells that it lives from its parent's buffers and takes nothing off the card.
ncclResult_t make_communicator(Communicator::Place place, Others others, bool shares, ncclComm_t* made);
/// Gives back what it took.
void drop_communicator(ncclComm_t handle);

ncclResult_t no_communicator(const char* function);

}  // namespace vramfit::phantom
