#include <chrono>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/suggest.h"
#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/help.h"
#include "cli/private_folder.h"
#include "cli/rehearse/artifacts.h"
#include "cli/rehearse/command.h"
#include "cli/rehearse/environment.h"
#include "cli/rehearse/ghost_store.h"
#include "cli/rehearse/launchers.h"
#include "cli/rehearse/phantom_library.h"
#include "cli/rehearse/program_file.h"
#include "cli/rehearse/rehearsal.h"
#include "cli/rehearse/session_folder.h"
#include "job/cluster.h"
#include "job/field_text.h"

namespace vramfit {
namespace {

struct RehearseFlags {
  std::string gpus, ranks = "all", timeout, settings, keep, output, snapshot, trace;
  bool json = false, strict_oom = false;
  std::vector<std::string> command;
};

Cluster phantom_cluster(const RehearseFlags& flags) {
  if (flags.gpus.empty()) throw InputError("--gpus: missing; say what to play, such as --gpus 8xH100-80GB");
  Cluster cluster = parse_cluster(flags.gpus);
  if (cluster.is_cpu()) {
    throw InputError(
        fmt::format("--gpus {}: CPU ranks need no phantom; start CMD as it is, or play a GPU", cluster.text));
  }
  return cluster;
}

std::optional<std::int64_t> played_rank(const RehearseFlags& flags, const Cluster& cluster) {
  if (flags.ranks == "all") {
    if (cluster.nodes == 1) return std::nullopt;
    throw InputError(
        fmt::format("--ranks all: CMD's processes share one node, {} has {}; play one rank of it: "
                    "--ranks 0",
                    cluster.text, cluster.nodes));
  }
  try {
    return whole_number(flags.ranks, 0, cluster.cards() - 1);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--ranks: \"all\", or one rank of {}: {}", cluster.text, error.what()));
  }
}

std::optional<std::chrono::milliseconds> timeout_of(const RehearseFlags& flags) {
  constexpr std::int64_t kMostSeconds = std::int64_t{366} * 24 * 3600;
  if (flags.timeout.empty()) return std::nullopt;
  try {
    return std::chrono::seconds(whole_number(flags.timeout, 1, kMostSeconds));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--timeout: {}", error.what()));
  }
}

void check_command(const RehearseFlags& flags, const std::optional<std::int64_t>& rank) {
  if (flags.command.empty()) {
    throw InputError("CMD: missing; it follows two dashes: vramfit rehearse --gpus 8xH100-80GB -- torchrun train.py");
  }
  const Launcher launcher = launcher_past_torch(flags.command);
  if (!rank || launcher.name.empty()) return;
  const std::string program = launcher.program.empty() ? "PROGRAM ..." : shell_words(launcher.program);
  throw InputError(
      printable(fmt::format("CMD: {} starts ranks, but --ranks {} plays one itself; use: vramfit rehearse --gpus {} "
                            "--ranks {} -- {}",
                            launcher.name, *rank, flags.gpus, *rank, program),
                2000));
}

/// Files that were asked for, out of the session folder, each named in a note.
void deliver_files(const RehearseFlags& flags, const std::string& folder, Rehearsal& rehearsal) {
  const auto hand_over = [&](const char* flag, const std::string& kind, const std::string& target) {
    if (target.empty()) return;
    const std::vector<std::string> names = deliver(folder, kind, rehearsal.processes, target);
    for (const std::string& name : names) rehearsal.notes.push_back(fmt::format("{} {}", flag, printable(name)));
    if (names.empty()) rehearsal.notes.push_back(fmt::format("{}: no process left one", flag));
  };
  hand_over("--snapshot", "snapshot", flags.snapshot);
  hand_over("--trace", "trace", flags.trace);
}

CommandStart command_start(const RehearseFlags& flags, const std::string& library, const std::string& session) {
  CommandStart start{.program = find_program(flags.command[0]),
                     .words = flags.command,
                     .environment = phantom_environment(library, session),
                     .timeout = timeout_of(flags),
                     .output_to_stderr = flags.json};
  if (!flags.snapshot.empty()) start.environment.emplace_back("VRAMFIT_REHEARSAL_SNAPSHOT", "1");
  return start;
}

int run_rehearse(const RehearseFlags& flags) {
  Rehearsal rehearsal;
  rehearsal.command = flags.command;
  rehearsal.cluster = phantom_cluster(flags);
  rehearsal.played_rank = played_rank(flags, rehearsal.cluster);
  rehearsal.strict_out_of_memory = flags.strict_oom;
  check_command(flags, rehearsal.played_rank);
  PhantomSettings settings = parse_phantom_settings(flags.settings);
  settings.trace = !flags.trace.empty();
  if (!flags.snapshot.empty()) check_can_write("--snapshot", flags.snapshot);
  if (!flags.trace.empty()) check_can_write("--trace", flags.trace);
  if (!flags.output.empty()) check_can_write("--output", flags.output);
  const std::string library = find_phantom_library();
  sweep_private_folders();
  const SessionFolder session(flags.keep);
  write_file(session.path() + "/session.json", session_to_json(rehearsal.cluster, rehearsal.played_rank, settings));

  CommandStart start = command_start(flags, library, session.path());
  const std::string unreachable = why_out_of_reach(start.program);
  const SignalDescriptor signals;
  std::optional<GhostStore> ghosts;
  if (rehearsal.played_rank) {
    ghosts.emplace(GhostWorld{.ranks = rehearsal.cluster.cards(), .played = *rehearsal.played_rank});
    const EnvironmentChanges more = rank_environment(rehearsal.cluster, *rehearsal.played_rank, ghosts->port());
    start.environment.insert(start.environment.end(), more.begin(), more.end());
  }
  rehearsal.end = run_command(start, signals);
  if (ghosts) rehearsal.ghosts = ghosts->report();
  rehearsal.processes = read_records(session.path(), rehearsal.notes);
  if (!unreachable.empty()) {
    rehearsal.notes.push_back(fmt::format("{} {}, so the phantom can't reach it, only what it starts",
                                          printable(start.program), unreachable));
  }
  judge(rehearsal);
  deliver_files(flags, session.path(), rehearsal);
  if (!flags.output.empty()) write_file(flags.output, rehearsal_to_json(rehearsal));
  write_file("-", flags.json ? rehearsal_to_json(rehearsal) : rehearsal_text(rehearsal));
  return rehearsal.exit_code();
}

}  // namespace

void add_rehearse(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<RehearseFlags>();
  command.add_option("--gpus", flags->gpus, "GPUs to simulate, [NODESx]COUNTxCARD: 8xH100-80GB")
      ->type_name("CLUSTER")
      ->group(kCommonFlags);
  command
      .add_option("--ranks", flags->ranks,
                  "all: CMD starts its own ranks; R: CMD is rank R alone, the other ranks are simulated. Default: all")
      ->type_name("all|R")
      ->group(kCommonFlags);
  command.add_option("--timeout", flags->timeout, "Kill CMD and its children after this many seconds")
      ->type_name("SECONDS")
      ->group(kRunFlags);
  command
      .add_flag("--strict-oom", flags->strict_oom,
                "Exit with code 6 also if CMD ran out of memory and went on, such as with a smaller batch")
      ->group(kRunFlags);
  command
      .add_option("--set", flags->settings,
                  "Settings of the simulation: addresses=ascending|descending|shuffled:SEED, "
                  "completion=immediate|late:SEED, real-bytes=N, values=computed|unknown, routing=balanced|worst, "
                  "selected=SHARE, integer-bytes=N, float-bytes=N")
      ->type_name("KEY=VALUE,...")
      ->group(kRunFlags);
  command
      .add_option("--snapshot", flags->snapshot,
                  "Write PyTorch's memory snapshot: at the first out-of-memory error, else at the end")
      ->type_name("FILE")
      ->group(kOutputFlags);
  command.add_option("--trace", flags->trace, "Write every CUDA driver event as JSON lines")
      ->type_name("FILE")
      ->group(kOutputFlags);
  command.add_option("--keep", flags->keep, "Keep the session folder, as DIR")->type_name("DIR")->group(kOutputFlags);
  command.add_option("-o,--output", flags->output, "Write the JSON object to FILE too")
      ->type_name("FILE")
      ->group(kOutputFlags);
  command.add_flag("--json", flags->json, "Print one JSON object; what CMD prints goes to stderr")->group(kOutputFlags);
  command.add_option("CMD", flags->command, "The command to run, after two dashes")->type_name("...");
  command.callback([flags, &exit_code] {
    for (std::string& word : flags->command) {
      if (!word.starts_with(kWordMark))
        throw InputError(fmt::format("{}: unknown argument; CMD follows two dashes", printable(word)));
      word.erase(0, 1);
    }
    if (is_stdout(flags->output)) {
      flags->json = true;
      flags->output.clear();
    }
    exit_code = run_rehearse(*flags);
  });
}

}  // namespace vramfit
