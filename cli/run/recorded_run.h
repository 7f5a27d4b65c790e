// Ranks that are started and whose run.json is read when they have ended.
#pragma once

#include <string>

#include "cli/launch/launch.h"

namespace vramfit {

/// What ranks that have ended leave.
struct RunEnd {
  int exit_code = 0;
  std::string record;  // run.json of rank 0, or of the rank that was played; "" if none was written
};

/// Starts the ranks as `launch` says and waits for their end. They write run.json into `folder`, which is the caller's
/// and exists. Throws FaultError when they can't be started.
RunEnd launch_recorded(LaunchOptions launch, const std::string& folder);

}  // namespace vramfit
