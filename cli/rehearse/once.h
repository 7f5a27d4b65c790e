// One rehearsal from start to verdict.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/environment.h"
#include "cli/launch/signal_descriptor.h"
#include "cli/rehearse/processes/session_folder.h"
#include "cli/rehearse/rehearsal.h"
#include "job/cluster/cluster.h"

namespace vramfit {

struct RehearsalRequest {
  Cluster cluster;
  std::optional<std::int64_t> played_rank;
  PhantomSettings settings;
  bool strict_out_of_memory = false, output_to_stderr = false, snapshot = false;
  std::optional<std::chrono::milliseconds> timeout;
  std::string library;             // folder of the stand-ins
  EnvironmentChanges environment;  // besides what every rehearsed command gets
};

/// Runs `command` with the session in `folder`, and judges it. Throws InputError or FaultError if it can't be started.
Rehearsal rehearse_once(const RehearsalRequest& request, const std::vector<std::string>& command,
                        const std::string& folder, const SignalDescriptor& signals);

}  // namespace vramfit
