// `vramfit rehearse --search`: from the flags to the table.
#pragma once

#include "cli/rehearse/subject.h"

namespace vramfit {

/// Prints the table; the exit code. Throws Error.
int run_searches(const RehearseFlags& flags);

/// Whether this process is one rehearsal of a search, started by a process with the imports done
/// (phantom/python/vramfit_warm/server.py).
bool is_warm_trial();
/// Rehearses, and hands the result to the search. Only if is_warm_trial.
void run_warm_trial(const RehearseFlags& flags);

}  // namespace vramfit
