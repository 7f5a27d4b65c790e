// Operations as they are issued: at once, or together at the end of a group.
#pragma once

#include <functional>
#include <string_view>

#include <nccl.h>

#include "phantom/nccl/operation.h"

namespace vramfit::phantom {

/// Carries it out, or keeps it until the thread's group ends.
ncclResult_t issue(Operation operation);
/// The same for what has to hear from other ranks before it can answer, as a split.
ncclResult_t issue(std::function<ncclResult_t()> work);

void start_group();
ncclResult_t end_group();
/// Forgets what the group was given: it was only to be simulated. False if the thread is in no group.
bool drop_group();

/// Keeps the text for ncclGetLastError, and returns the error.
ncclResult_t refuse(ncclResult_t error, std::string_view what);
const char* last_error();

}  // namespace vramfit::phantom
