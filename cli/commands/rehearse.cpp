#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/suggest.h"
#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/private_folder.h"
#include "cli/recipes/recipe_run.h"
#include "cli/rehearse/artifacts.h"
#include "cli/rehearse/band.h"
#include "cli/rehearse/launchers.h"
#include "cli/rehearse/once.h"
#include "cli/rehearse/phantom_library.h"
#include "cli/rehearse/played_ranks.h"
#include "cli/rehearse/search.h"
#include "cli/rehearse/session_folder.h"
#include "cli/rehearse/trial.h"
#include "cli/rehearse/trial_cache.h"
#include "cli/rehearse/trial_pool.h"
#include "job/cluster/cluster.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

struct RehearseFlags {
  std::string gpus, ranks = "all", timeout, settings, keep, output, snapshot, trace, cache, jobs;
  bool json = false, strict_oom = false, band = false;
  std::vector<std::string> command, searches;
  RecipeFlags recipe;
};

/// CMD as it was given, or a recipe's script.
class Subject {
 public:
  Subject(const RehearseFlags& flags, const RehearsalRequest& request) : command_(flags.command) {
    // Ranks of several nodes are started by vramfit, each as if it were played alone.
    const auto rank = request.cluster.nodes > 1 ? request.played_rank.value_or(0) : request.played_rank;
    if (!flags.recipe.name.empty()) recipe_.emplace(flags.recipe, request.cluster, rank, flags.keep);
  }
  std::vector<std::string> command(const SearchPoint& point) const {
    return recipe_ ? recipe_->command(point) : with_values(command_, point);
  }
  /// What keeps results of equal rehearsals together.
  std::vector<std::string> identity(const SearchPoint& point) const {
    return recipe_ ? recipe_->identity(point) : with_values(command_, point);
  }
  std::vector<std::string> notes() const { return recipe_ ? recipe_->notes() : std::vector<std::string>{}; }
  std::string kept_session(const std::string& keep) const { return recipe_ ? recipe_->kept_session() : keep; }

 private:
  const std::vector<std::string>& command_;
  std::optional<RecipeRun> recipe_;
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

bool plays_worst(const RehearseFlags& flags) { return flags.ranks == "worst"; }

/// Of --ranks worst it is the first that is played.
std::optional<std::int64_t> played_rank(const RehearseFlags& flags, const Cluster& cluster) {
  if (plays_worst(flags)) return 0;
  if (flags.ranks == "all") return std::nullopt;
  try {
    return whole_number(flags.ranks, 0, cluster.cards() - 1);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--ranks: \"all\", \"worst\", or one rank of {}: {}", cluster.text, error.what()));
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
  given_values(flags.recipe);  // refuses choices without a recipe
  if (!flags.recipe.name.empty()) {
    if (flags.command.empty()) return;
    throw InputError("CMD: --recipe writes and starts a script of its own");
  }
  if (flags.command.empty()) {
    throw InputError("CMD: missing; it follows two dashes: vramfit rehearse --gpus 8xH100-80GB -- torchrun train.py");
  }
  const Launcher launcher = launcher_past_torch(flags.command);
  if (!rank || launcher.name.empty()) return;
  const std::string program = launcher.program.empty() ? "PROGRAM ..." : shell_words(launcher.program);
  throw InputError(
      printable(fmt::format("CMD: {} starts ranks, but --ranks {} plays one itself; use: vramfit rehearse --gpus {} "
                            "--ranks {} -- {}",
                            launcher.name, flags.ranks, flags.gpus, flags.ranks, program),
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

RehearsalRequest request_of(const RehearseFlags& flags) {
  RehearsalRequest request;
  request.cluster = phantom_cluster(flags);
  request.played_rank = played_rank(flags, request.cluster);
  request.strict_out_of_memory = flags.strict_oom;
  check_command(flags, request.played_rank);
  request.settings = parse_phantom_settings(flags.settings);
  request.settings.trace = !flags.trace.empty();
  request.output_to_stderr = flags.json;
  if (!flags.recipe.name.empty()) request.environment.emplace_back("HF_HUB_OFFLINE", "1");  // all it needs is there
  request.snapshot = !flags.snapshot.empty();
  request.timeout = timeout_of(flags);
  return request;
}

void refuse_cache(const RehearseFlags& flags) {
  if (!flags.cache.empty()) throw InputError("--cache: keeps the results of a --search, which is missing");
}

/// Flags that ask for files of one rehearsal, where there are several.
void refuse_files(const RehearseFlags& flags, const char* several) {
  for (const auto& [flag, value] : {std::pair("--snapshot", &flags.snapshot), std::pair("--trace", &flags.trace),
                                    std::pair("--keep", &flags.keep)}) {
    if (!value->empty()) throw InputError(fmt::format("{}: is of one rehearsal, and {} makes several", flag, several));
  }
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
  refuse_cache(flags);
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

/// Nothing: as many as cores and host memory allow.
std::optional<int> jobs_of(const RehearseFlags& flags) {
  constexpr int kMostJobs = 256;
  if (flags.jobs.empty() || flags.jobs == "auto") return std::nullopt;
  try {
    return static_cast<int>(whole_number(flags.jobs, 1, kMostJobs));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--jobs: \"auto\", or a number: {}", error.what()));
  }
}

void say_verdict(const RehearsalTrial& trial) {
  const char* origin = trial.is_cached ? " (cached)" : "";
  complain("vramfit", fmt::format("{}: {}{}", point_text(trial.point), trial.verdict, origin));
}

TrialActions trial_actions(const RehearsalRequest& request, const Subject& subject, TrialCache& cache,
                           bool has_others) {
  const auto key = [&](const SearchPoint& point) { return trial_key(request, subject.identity(point)); };
  const auto run = [&, has_others](const SearchPoint& point) {
    return rehearse_trial(request, subject.command(point), point, has_others);
  };
  const auto kept = [&, key](const SearchPoint& point) {
    std::optional<RehearsalTrial> trial = cache.find(key(point));
    if (trial) trial->point = point;
    return trial;
  };
  const auto ended = [&, key](const RehearsalTrial& trial) { cache.put(key(trial.point), trial); };
  return {.run = run, .kept = kept, .ended = ended, .accept = say_verdict};
}

/// Where the {NAME} of a search can be.
std::vector<std::string> searched_words(const RehearseFlags& flags) {
  std::vector<std::string> words = flags.command;
  for (const auto& [flag, value] : flags.recipe.values) words.push_back(value);
  return words;
}

int run_searches(const RehearseFlags& flags) {
  refuse_files(flags, "--search");
  if (plays_worst(flags))
    throw InputError("--ranks worst: plays several ranks; a --search plays one or all: --ranks R");
  RehearsalRequest request = request_of(flags);
  request.strict_out_of_memory = true;  // a program that went on with another batch did not fit with the given one
  request.output_to_stderr = true;
  const std::vector<SearchAxis> axes = parse_search(flags.searches, searched_words(flags));
  if (!flags.output.empty()) check_can_write("--output", flags.output);
  if (!flags.cache.empty()) check_can_write("--cache", flags.cache);
  request.library = find_phantom_library();
  sweep_private_folders();
  TrialCache cache(flags.cache);
  const Subject subject(flags, request);
  for (const std::string& note : subject.notes()) complain("vramfit", note);
  const std::optional<int> jobs = jobs_of(flags);
  ProcessPool pool(trial_actions(request, subject, cache, jobs != 1), jobs);
  const SearchResult result = run_search(axes, pool);
  const Bytes capacity = request.cluster.card.memory;
  const std::string json = search_to_json(result, request.cluster.text, capacity);
  if (!flags.output.empty()) write_file(flags.output, json);
  write_file("-", flags.json ? json : search_text(result, request.cluster.text, capacity));
  return result.exit_code();
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
  refuse_cache(flags);
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
  ProcessPool pool({.run = run,
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
      .add_option(
          "--search", flags.searches,
          "Try values of {NAME} in CMD: FIRST..LAST finds the largest that fits, a list is tried one by one; may "
          "be given several times, with one range")
      ->type_name("NAME=VALUES")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)  // CMD may come next
      ->group(kRunFlags);
  command
      .add_flag("--band", flags.band,
                "Rehearse both ends of each assumption that sizes or branches follow from: routing balanced and worst, "
                "selections full and empty")
      ->group(kRunFlags);
  command
      .add_option("--jobs", flags.jobs,
                  "How many rehearsals of a search or a band run at once. Default: auto, as many as cores and host "
                  "memory allow")
      ->type_name("N|auto")
      ->group(kRunFlags);
  command.add_option("--cache", flags.cache, "Keep the results of a search in FILE, and use those that are there")
      ->type_name("FILE")
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
                  "all: CMD starts its own ranks; R: CMD is rank R alone, the other ranks are simulated; worst: ranks "
                  "that may differ, one after another. Default: all")
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
                  "The command to run, after two dashes; with --recipe the MODEL alone, without them")
      ->type_name("...");
  command.callback([flags, &exit_code] {
    take_words(*flags);
    if (is_stdout(flags->output)) {
      flags->json = true;
      flags->output.clear();
    }
    exit_code = flags->band ? run_bands(*flags) : flags->searches.empty() ? run_rehearse(*flags) : run_searches(*flags);
  });
}

}  // namespace vramfit
