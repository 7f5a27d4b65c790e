#include "cli/rehearse/search/trial.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/launch/environment.h"
#include "cli/launch/loopback_port.h"
#include "cli/rehearse/ghosts/played_ranks.h"
#include "cli/rehearse/report/assumptions.h"

namespace vramfit {
namespace {

RehearsalTrial trial_of(const Rehearsal& rehearsal, const SearchPoint& point) {
  const Bytes total = rehearsal.worst < 0 ? Bytes{} : rehearsal.ranks[static_cast<std::size_t>(rehearsal.worst)].total;
  return {.point = point,
          .verdict = std::string(verdict_name(rehearsal.verdict)),
          .why = rehearsal.why,
          .total = total,
          .exit_code = rehearsal.exit_code(),
          .is_interrupted = rehearsal.end.interrupted_by != 0,
          .is_cached = false,
          .processes = static_cast<int>(std::ranges::count_if(
              rehearsal.processes, [](const ProcessRecord& process) { return !process.cards.empty(); })),
          .assumptions = risky_assumptions(rehearsal.processes)};
}

/// torchrun's default port, which several rehearsals can't have at once, unless the user chose one.
void set_own_port(RehearsalRequest& request) {
  constexpr const char* kPort = "PET_MASTER_PORT";
  if (environment_value(kPort).empty())
    request.environment.emplace_back(kPort, fmt::to_string(LoopbackPort().number()));
}

}  // namespace

RehearsalTrial rehearse_trial(RehearsalRequest request, const std::vector<std::string>& command,
                              const SearchPoint& point, bool has_others) {
  if (has_others) set_own_port(request);
  const SessionFolder session("");
  const SignalDescriptor signals;
  return trial_of(rehearse_with_senders(request, command, session.path(), signals), point);
}

}  // namespace vramfit
