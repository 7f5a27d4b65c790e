// Ranks that are played one after another, each alone among ghosts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/launch/signal_descriptor.h"
#include "cli/rehearse/once.h"

namespace vramfit {

/// Plays rank `request.played_rank` with the session in `folder`. Where it receives objects that only another rank can
/// make (a pipeline stage what the stage before it sends), that rank is played first, in a folder of its own, and what
/// it sent is kept in `objects`. Notes say which ranks those were.
Rehearsal rehearse_after_senders(const RehearsalRequest& request, const std::vector<std::string>& command,
                                 const std::string& folder, const std::string& objects,
                                 const SignalDescriptor& signals);

/// The same with a folder for what is sent; without a played rank, as rehearse_once.
Rehearsal rehearse_with_senders(const RehearsalRequest& request, const std::vector<std::string>& command,
                                const std::string& folder, const SignalDescriptor& signals);

/// Before all ranks of several nodes run on this machine: plays rank 0 alone, and throws InputError with the figures if
/// as many as there are need more host memory than is available.
void require_host_memory_for_all(const RehearsalRequest& request, const std::vector<std::string>& command,
                                 const SignalDescriptor& signals);

using PlayRank = std::function<Rehearsal(std::int64_t rank)>;

/// Which ranks differ: all are played if there are few; otherwise the first, the middle and the last of the first, the
/// middle and the last node, and then halfway between two that were played and differ, until neighbours do or `most`
/// were played. The result has the processes of all, and names those that were played and those that were not.
Rehearsal rehearse_ranks_that_differ(const RehearsalRequest& request, const std::vector<std::string>& command,
                                     const PlayRank& play, std::size_t most);

}  // namespace vramfit
