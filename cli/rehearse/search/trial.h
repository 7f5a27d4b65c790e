// One rehearsal of several, of a search or a band.
#pragma once

#include <string>
#include <vector>

#include "cli/rehearse/once.h"
#include "cli/rehearse/search/search.h"

namespace vramfit {

/// Rehearses `command` in a session folder of its own. `has_others`: others may run at the same time, so it gets a port
/// of its own. Throws as rehearse_with_senders.
RehearsalTrial rehearse_trial(RehearsalRequest request, const std::vector<std::string>& command,
                              const SearchPoint& point, bool has_others);

}  // namespace vramfit
