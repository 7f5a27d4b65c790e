#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/private_folder.h"
#include "cli/rehearse/ghosts/played_ranks.h"
#include "cli/rehearse/processes/phantom_library.h"
#include "cli/rehearse/processes/session_folder.h"
#include "cli/rehearse/report/artifacts.h"
#include "cli/rehearse/search/band.h"
#include "cli/rehearse/search/search_run.h"
#include "cli/rehearse/search/trial.h"
#include "cli/rehearse/search/trial_pool.h"
#include "cli/rehearse/subject.h"

namespace vramfit {
namespace {

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

Rehearsal rehearse_worst(const RehearsalRequest& request, const Subject& subject) {
  constexpr std::size_t kMostPlayed = 16;
  const PrivateFolder objects("rehearsal");
  const std::vector<std::string> command = subject.command({});
  const SignalDescriptor signals;
  const auto play = [&](std::int64_t rank) {
    complain("vramfit", fmt::format("playing rank {}", rank));
    RehearsalRequest one = request;
    one.played_rank = rank;
    const SessionFolder session("");
    return rehearse_after_senders(one, command, session.path(), objects.path(), signals);
  };
  return rehearse_ranks_that_differ(request, command, play, kMostPlayed);
}

Rehearsal rehearse_single(const RehearseFlags& flags, const RehearsalRequest& request, const Subject& subject) {
  const SessionFolder session(subject.kept_session(flags.keep));
  const SignalDescriptor signals;
  const std::vector<std::string> command = subject.command({});
  if (!request.played_rank && request.cluster.nodes > 1) require_host_memory_for_all(request, command, signals);
  Rehearsal rehearsal = rehearse_with_senders(request, command, session.path(), signals);
  deliver_files(flags, session.path(), rehearsal);
  return rehearsal;
}

int run_rehearse(const RehearseFlags& flags) {
  if (plays_worst(flags)) refuse_files(flags, "--ranks worst");
  RehearsalRequest request = request_of(flags);
  refuse_search_flags(flags);
  if (!flags.jobs.empty()) throw InputError("--jobs: is how many rehearsals of a --search or a --band run at once");
  if (!flags.snapshot.empty()) check_can_write("--snapshot", flags.snapshot);
  if (!flags.trace.empty()) check_can_write("--trace", flags.trace);
  if (!flags.output.empty()) check_can_write("--output", flags.output);
  request.library = find_phantom_library();
  sweep_private_folders();
  const Subject subject(flags, request);
  Rehearsal rehearsal =
      plays_worst(flags) ? rehearse_worst(request, subject) : rehearse_single(flags, request, subject);
  for (const std::string& note : subject.notes()) rehearsal.notes.push_back(note);
  if (!flags.output.empty()) write_file(flags.output, rehearsal_to_json(rehearsal));
  write_file("-", flags.json ? rehearsal_to_json(rehearsal) : rehearsal_text(rehearsal));
  return rehearsal.exit_code();
}

/// --band decides these.
void refuse_chosen_ends(const PhantomSettings& settings) {
  const PhantomSettings usual;
  if (settings.routing == usual.routing && settings.selected == usual.selected && settings.values == usual.values)
    return;
  throw InputError("--set: routing, selected and values are what --band tries the ends of");
}

int run_bands(const RehearseFlags& flags) {
  refuse_files(flags, "--band");
  refuse_search_flags(flags);
  if (!flags.searches.empty()) throw InputError("--band: is of one program; a --search has many");
  if (plays_worst(flags)) throw InputError("--ranks worst: plays several ranks; --band plays one or all: --ranks R");
  RehearsalRequest request = request_of(flags);
  refuse_chosen_ends(request.settings);
  request.output_to_stderr = true;
  if (!flags.output.empty()) check_can_write("--output", flags.output);
  request.library = find_phantom_library();
  sweep_private_folders();
  const Subject subject(flags, request);
  for (const std::string& note : subject.notes()) complain("vramfit", note);
  const std::optional<int> jobs = jobs_of(flags);
  const auto run = [&](const SearchPoint& point) {
    RehearsalRequest own = request;
    own.settings = settings_at(own.settings, point);
    return rehearse_trial(own, subject.command({}), point, jobs != 1);
  };
  ProcessPool pool({.start = forked_trial(run),
                    .kept = [](const SearchPoint&) { return std::nullopt; },
                    .ended = [](const RehearsalTrial&) {},
                    .accept = say_verdict},
                   jobs);
  const RehearsalBand band = run_band(pool);
  const Bytes capacity = request.cluster.card.memory;
  const std::string json = band_to_json(band, request.cluster.text, capacity);
  if (!flags.output.empty()) write_file(flags.output, json);
  write_file("-", flags.json ? json : band_text(band, request.cluster.text, capacity));
  return band.exit_code();
}

void add_search_flags(CLI::App& command, RehearseFlags& flags) {
  command
      .add_option("--search", flags.searches,
                  "Try values of {NAME} in CMD: FIRST..LAST finds the largest that fits, a list is tried one by one; "
                  "may be repeated, with at most one range")
      ->type_name("NAME=VALUES")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)  // CMD may come next
      ->group(kRunFlags);
  command
      .add_flag("--band", flags.band,
                "Rehearse both extremes of each assumption on which sizes or branches depend: routing balanced and "
                "worst, selections full and empty")
      ->group(kRunFlags);
  command
      .add_option("--jobs", flags.jobs,
                  "How many rehearsals of a search or a band run at once. Default: auto, as many as cores and host "
                  "memory allow")
      ->type_name("N|auto")
      ->group(kRunFlags);
  command.add_option("--cache", flags.cache, "Keep the results of a search in FILE, and reuse those already in it")
      ->type_name("FILE")
      ->group(kRunFlags);
  command
      .add_option("--warm", flags.warm,
                  "Import modules only once for all rehearsals of a search: those named here, or with auto those that "
                  "the script imports before it does anything else. Default: off")
      ->type_name("MODULE,...|auto|off")
      ->group(kRunFlags);
}

/// What CLI11 took for CMD: the words after two dashes, and before them a recipe's MODEL.
void take_words(RehearseFlags& flags) {
  std::vector<std::string> words;
  words.swap(flags.command);
  for (const std::string& word : words) {
    if (word.starts_with(kWordMark)) {
      flags.command.push_back(word.substr(1));
    } else if (!flags.recipe.name.empty() && flags.recipe.model.empty()) {
      flags.recipe.model = word;
    } else {
      throw InputError(fmt::format("{}: unknown argument; CMD follows two dashes", printable(word)));
    }
  }
}

}  // namespace

void add_rehearse(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<RehearseFlags>();
  command.add_option("--gpus", flags->gpus, "GPUs to simulate, [NODESx]COUNTxCARD: 8xH100-80GB")
      ->type_name("CLUSTER")
      ->group(kCommonFlags);
  command
      .add_option("--ranks", flags->ranks,
                  "all: CMD starts its own ranks; R: CMD runs as rank R, and the other ranks are simulated; worst: the "
                  "same for each rank that may differ, one after another. Default: all")
      ->type_name("all|R|worst")
      ->group(kCommonFlags);
  command.add_option("--timeout", flags->timeout, "Kill CMD and its children after this many seconds")
      ->type_name("SECONDS")
      ->group(kRunFlags);
  command
      .add_flag("--strict-oom", flags->strict_oom,
                "Exit with code 6 also if CMD ran out of memory and went on, such as with a smaller batch")
      ->group(kRunFlags);
  add_search_flags(command, *flags);
  add_recipe_flags(command, flags->recipe);
  command.add_option("--set", flags->settings, kPhantomSettings)->type_name("KEY=VALUE,...")->group(kRunFlags);
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
  command
      .add_option("CMD", flags->command,
                  "The command to run, after two dashes; with --recipe only MODEL, without dashes")
      ->type_name("...");
  command.callback([flags, &exit_code] {
    take_words(*flags);
    if (is_stdout(flags->output)) {
      flags->json = true;
      flags->output.clear();
    }
    if (is_warm_trial()) return run_warm_trial(*flags);
    exit_code = flags->band ? run_bands(*flags) : flags->searches.empty() ? run_rehearse(*flags) : run_searches(*flags);
  });
}

}  // namespace vramfit
