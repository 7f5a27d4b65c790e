#include "cli/rehearse/once.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/files/result_file.h"
#include "base/text/suggest.h"
#include "cli/rehearse/ghosts/ghost_store.h"
#include "cli/rehearse/launchers/launcher_shims.h"
#include "cli/rehearse/processes/command.h"
#include "cli/rehearse/processes/environment.h"
#include "cli/rehearse/processes/program_file.h"
#include "cli/rehearse/report/records.h"

namespace vramfit {
namespace {

bool is_played_launcher(const RehearsalRequest& request, const std::string& word) {
  return (request.played_rank || request.cluster.nodes > 1) && has_shim(word);
}

CommandStart command_start(const RehearsalRequest& request, const std::vector<std::string>& command,
                           const std::string& folder) {
  const bool is_played = is_played_launcher(request, command[0]);  // it need not be installed
  CommandStart start{.program = is_played ? command[0] : find_program(command[0]),
                     .words = command,
                     .environment = phantom_environment(request.library, folder),
                     .timeout = request.timeout,
                     .output_to_stderr = request.output_to_stderr,
                     .warm = take_warm_process()};
  start.environment.insert(start.environment.end(), request.environment.begin(), request.environment.end());
  if (request.snapshot) start.environment.emplace_back("VRAMFIT_REHEARSAL_SNAPSHOT", "1");
  return start;
}

/// Those of MPI and Slurm, as this program plays them. `all`: CMD is started once for each rank.
void put_launchers_first(CommandStart& start, const std::string& folder, bool all) {
  const std::string launchers = make_launcher_shims(folder);
  if (all) start.words.insert(start.words.begin(), kStartsAllRanks);
  const std::string name = std::filesystem::path(start.words[0]).filename().string();
  if (all || has_shim(name)) start.program = launchers + "/" + name;
  start.environment.emplace_back("PATH", launchers + ":" + environment_value("PATH"));
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
  std::optional<GhostStore> ghosts;
  if (request.played_rank || request.cluster.nodes > 1) {
    // Where all run, it is a store like any other.
    ghosts.emplace(GhostWorld{.ranks = request.played_rank ? request.cluster.cards() : 1,
                              .played = request.played_rank.value_or(0)});
    const EnvironmentChanges more = rank_environment(request.cluster, request.played_rank.value_or(0), ghosts->port());
    start.environment.insert(start.environment.end(), more.begin(), more.end());
    put_launchers_first(start, folder, !request.played_rank);
  }
  const std::string unreachable = why_out_of_reach(start.program);
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
