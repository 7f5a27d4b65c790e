#include "cli/rehearse/once.h"

#include <fmt/format.h>

#include "base/result_file.h"
#include "base/suggest.h"
#include "cli/rehearse/command.h"
#include "cli/rehearse/environment.h"
#include "cli/rehearse/ghost_store.h"
#include "cli/rehearse/program_file.h"
#include "cli/rehearse/records.h"

namespace vramfit {
namespace {

CommandStart command_start(const RehearsalRequest& request, const std::vector<std::string>& command,
                           const std::string& folder) {
  CommandStart start{.program = find_program(command[0]),
                     .words = command,
                     .environment = phantom_environment(request.library, folder),
                     .timeout = request.timeout,
                     .output_to_stderr = request.output_to_stderr};
  start.environment.insert(start.environment.end(), request.environment.begin(), request.environment.end());
  if (request.snapshot) start.environment.emplace_back("VRAMFIT_REHEARSAL_SNAPSHOT", "1");
  return start;
}

}  // namespace

Rehearsal rehearse_once(const RehearsalRequest& request, const std::vector<std::string>& command,
                        const std::string& folder, const SignalDescriptor& signals) {
  Rehearsal rehearsal;
  rehearsal.command = command;
  rehearsal.cluster = request.cluster;
  rehearsal.played_rank = request.played_rank;
  rehearsal.strict_out_of_memory = request.strict_out_of_memory;
  write_file(folder + "/session.json", session_to_json(request.cluster, request.played_rank, request.settings));

  CommandStart start = command_start(request, command, folder);
  const std::string unreachable = why_out_of_reach(start.program);
  std::optional<GhostStore> ghosts;
  if (request.played_rank) {
    ghosts.emplace(GhostWorld{.ranks = request.cluster.cards(), .played = *request.played_rank});
    const EnvironmentChanges more = rank_environment(request.cluster, *request.played_rank, ghosts->port());
    start.environment.insert(start.environment.end(), more.begin(), more.end());
  }
  rehearsal.end = run_command(start, signals);
  if (ghosts) rehearsal.ghosts = ghosts->report();
  rehearsal.processes = read_records(folder, rehearsal.notes);
  if (!unreachable.empty()) {
    rehearsal.notes.push_back(fmt::format("{} {}, so the phantom can't reach it, only what it starts",
                                          printable(start.program), unreachable));
  }
  judge(rehearsal);
  return rehearsal;
}

}  // namespace vramfit
