// A job as one types it again.
#pragma once

#include <string>

#include "job/job.h"

namespace vramfit {

/// The flags that make `job`, the same for every command. --runtime is always one of them, as a command without it may
/// mean another one ("vramfit estimate" means the usual library's, "vramfit plan" the engine's).
std::string whole_job_flags(const Job& job);

}  // namespace vramfit
