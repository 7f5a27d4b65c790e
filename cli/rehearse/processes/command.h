// Runs a command until it and everything that it started have ended.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/text/units.h"
#include "cli/launch/environment.h"
#include "cli/launch/signal_descriptor.h"
#include "cli/rehearse/processes/process_tree.h"
#include "cli/rehearse/warm/warm_process.h"

namespace vramfit {

struct CommandStart {
  std::string program;             // path
  std::vector<std::string> words;  // with the program's name as it was given
  EnvironmentChanges environment;
  std::optional<std::chrono::milliseconds> timeout;
  bool output_to_stderr = false;    // its stdout too, because our stdout carries a document
  std::optional<WarmProcess> warm;  // runs it, and nothing is started
};

struct CommandEnd {
  int exit_code = -1;   // -1 when a signal ended it
  int exit_signal = 0;  // 0 when none did
  bool timed_out = false;
  int interrupted_by = 0;            // the signal that asked us to end
  int left_behind = 0;               // processes that it left running, and that were ended
  std::vector<Descendant> outlived;  // what could not be ended
  bool outlived_unseen = false;      // some of it starts itself anew before it can be looked at
  double seconds = 0;
  Bytes host_memory;  // the most that it and all it started had at once, of about one look a second
};

/// Runs it in the foreground. Signals that ask this process to end are passed on; 10 seconds later, at a second
/// signal, or at the time-out, all descendants are ended (SIGTERM, 3 seconds later SIGKILL, for up to 10 seconds). When
/// this returns, no process is left except those in `outlived`, and the command does not outlive this process. Throws
/// FaultError when it can't be started. `signals` must be created before any thread that runs meanwhile.
CommandEnd run_command(const CommandStart& start, const SignalDescriptor& signals);

}  // namespace vramfit
