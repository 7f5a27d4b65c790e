// A Python process that imports once what all rehearsals of a search need, and of which each of them is a fork
// (phantom/python/vramfit_warm/server.py).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/rehearse/once.h"
#include "cli/rehearse/processes/session_folder.h"
#include "cli/rehearse/warm/warm_command.h"

namespace vramfit {

class WarmServer {
 public:
  /// Imports `modules`, with commas in between, or "": what the script imports before it does anything else. Throws
  /// InputError with the reason if they can't be, or must not be before a fork.
  WarmServer(const RehearsalRequest& request, const WarmCommand& command, const std::string& modules);
  /// Rehearsals that run go on.
  ~WarmServer();
  WarmServer(const WarmServer&) = delete;
  WarmServer& operator=(const WarmServer&) = delete;
  WarmServer(WarmServer&&) = delete;
  WarmServer& operator=(WarmServer&&) = delete;

  /// The statements.
  const std::string& imported() const { return imported_; }
  double seconds() const { return seconds_; }

  /// Starts `words` of this program as a child of this process, which must take orphans (Subreaper), to rehearse a fork
  /// of the server. `output` is its stdout and stderr. Throws FaultError.
  pid_t start(const std::vector<std::string>& words, int output, int result) const;

 private:
  SessionFolder session_;
  EnvironmentChanges environment_;  // of rehearsals
  std::string imported_;
  double seconds_ = 0;
  pid_t process_ = -1;
  int requests_ = -1;
};

}  // namespace vramfit
