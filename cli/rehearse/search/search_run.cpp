#include "cli/rehearse/search/search_run.h"

#include <sys/stat.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/private_folder.h"
#include "cli/rehearse/processes/phantom_library.h"
#include "cli/rehearse/report/artifacts.h"
#include "cli/rehearse/search/trial.h"
#include "cli/rehearse/search/trial_cache.h"
#include "cli/rehearse/search/trial_pool.h"
#include "cli/rehearse/warm/warm_command.h"
#include "cli/rehearse/warm/warm_server.h"

namespace vramfit {
namespace {

constexpr const char* kResult = "VRAMFIT_WARM_RESULT";  // the descriptor for the result of a trial

/// Where the {NAME} of a search can be.
std::vector<std::string> searched_words(const RehearseFlags& flags) {
  std::vector<std::string> words = flags.command;
  for (const auto& [flag, value] : flags.recipe.values) words.push_back(value);
  return words;
}

/// As a search rehearses.
RehearsalRequest trial_request(const RehearseFlags& flags) {
  RehearsalRequest request = request_of(flags);
  request.strict_out_of_memory = true;  // a program that went on with another batch did not fit with the given one
  request.output_to_stderr = true;
  return request;
}

SearchPoint first_point(const std::vector<SearchAxis>& axes) {
  SearchPoint point;
  for (const SearchAxis& axis : axes) {
    point.emplace_back(axis.name, axis.is_range ? fmt::to_string(axis.first) : axis.values.front());
  }
  return point;
}

/// Python, its flags and the script are the same in all rehearsals, or what was imported for one is not another's.
void check_same_program(const std::vector<std::string>& command, const std::vector<SearchAxis>& axes,
                        std::size_t words) {
  for (std::size_t index = 0; index < words && index < command.size(); ++index) {
    for (const SearchAxis& axis : axes) {
      if (command[index].find("{" + axis.name + "}") == std::string::npos) continue;
      throw InputError(fmt::format("\"{}\" is another program for each value", printable(command[index], 80)));
    }
  }
}

/// The process with the imports, or none. Throws InputError if one was asked for by name and there can't be one.
std::unique_ptr<WarmServer> warm_server(const RehearseFlags& flags, const RehearsalRequest& request,
                                        const Subject& subject, const std::vector<SearchAxis>& axes) {
  if (flags.warm.empty() || flags.warm == "off") return nullptr;
  const bool is_automatic = flags.warm == "auto";
  try {
    const WarmCommand command = warm_command(request, subject.command(first_point(axes)));
    const std::size_t named = command.script.empty() ? 2 : 1;  // -m MODULE, or SCRIPT
    if (!subject.is_recipe()) check_same_program(flags.command, axes, command.python.size() + named);
    auto server = std::make_unique<WarmServer>(request, command, is_automatic ? "" : flags.warm);
    complain("vramfit", fmt::format("imported once, in {:.1f} s: {}", server->seconds(), server->imported()));
    return server;
  } catch (const InputError& error) {
    if (!is_automatic) throw InputError(fmt::format("--warm {}: {}", printable(flags.warm, 80), error.what()));
    complain("vramfit", fmt::format("--warm auto: each rehearsal imports for itself: {}", error.what()));
    return nullptr;
  }
}

/// What runs one rehearsal as this program would be called for it alone.
std::vector<std::string> trial_words(const RehearseFlags& flags, const std::vector<std::string>& command) {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(),
                                 "rehearse",
                                 "--gpus",
                                 flags.gpus,
                                 "--ranks",
                                 flags.ranks};
  for (const auto& [flag, value] : {std::pair("--timeout", &flags.timeout), std::pair("--set", &flags.settings),
                                    std::pair("--jobs", &flags.jobs)}) {
    if (!value->empty()) words.insert(words.end(), {flag, *value});
  }
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

struct SearchRun {
  const RehearseFlags& flags;
  const RehearsalRequest& request;
  const Subject& subject;
  WarmServer* server;  // or null
  TrialCache& cache;

  std::string key(const SearchPoint& point) const {
    std::vector<std::string> identity = subject.identity(point);
    if (server != nullptr) identity.push_back("--warm " + server->imported());
    return trial_key(request, identity);
  }
};

/// For as long as `run` is there; so are the actions.
StartTrial start_of(const SearchRun& run, bool has_others) {
  if (run.server != nullptr) {
    return [&run](const SearchPoint& point, int output, int result) {
      return run.server->start(trial_words(run.flags, run.subject.command(point)), output, result);
    };
  }
  return forked_trial([&run, has_others](const SearchPoint& point) {
    return rehearse_trial(run.request, run.subject.command(point), point, has_others);
  });
}

TrialActions trial_actions(const SearchRun& run, bool has_others) {
  const auto kept = [&run](const SearchPoint& point) {
    std::optional<RehearsalTrial> trial = run.cache.find(run.key(point));
    if (trial) trial->point = point;
    return trial;
  };
  const auto ended = [&run](const RehearsalTrial& trial) { run.cache.put(run.key(trial.point), trial); };
  return {.start = start_of(run, has_others), .kept = kept, .ended = ended, .accept = say_verdict};
}

/// Taken out of the environment, which the program inherits. Throws InputError unless it is a pipe.
int take_result_descriptor() {
  const std::string text = environment_value(kResult);
  unsetenv(kResult);
  int descriptor = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), descriptor);
  struct stat facts {};
  const bool is_pipe = error == std::errc{} && stop == text.data() + text.size() && fstat(descriptor, &facts) == 0 &&
                       S_ISFIFO(facts.st_mode);
  if (!is_pipe) throw InputError(fmt::format("{}={}: not from a search", kResult, printable(text)));
  return descriptor;
}

}  // namespace

int run_searches(const RehearseFlags& flags) {
  refuse_files(flags, "--search");
  if (plays_worst(flags))
    throw InputError("--ranks worst: plays several ranks; a --search plays one or all: --ranks R");
  RehearsalRequest request = trial_request(flags);
  const std::vector<SearchAxis> axes = parse_search(flags.searches, searched_words(flags));
  if (!flags.output.empty()) check_can_write("--output", flags.output);
  if (!flags.cache.empty()) check_can_write("--cache", flags.cache);
  request.library = find_phantom_library();
  sweep_private_folders();
  TrialCache cache(flags.cache);
  const Subject subject(flags, request);
  for (const std::string& note : subject.notes()) complain("vramfit", note);
  const std::optional<int> jobs = jobs_of(flags);
  const std::unique_ptr<WarmServer> server = warm_server(flags, request, subject, axes);
  const SearchRun run{flags, request, subject, server.get(), cache};
  ProcessPool pool(trial_actions(run, jobs != 1), jobs);
  const SearchResult result = run_search(axes, pool);
  const Bytes capacity = request.cluster.card.memory;
  const std::string json = search_to_json(result, request.cluster.text, capacity);
  if (!flags.output.empty()) write_file(flags.output, json);
  write_file("-", flags.json ? json : search_text(result, request.cluster.text, capacity));
  return result.exit_code();
}

bool is_warm_trial() { return !environment_value(kResult).empty(); }

void run_warm_trial(const RehearseFlags& flags) {
  const int result = take_result_descriptor();
  RehearsalRequest request = trial_request(flags);
  request.library = find_phantom_library();
  const bool has_others = jobs_of(flags) != 1;
  write_trial(result, {},
              [&](const SearchPoint& point) { return rehearse_trial(request, flags.command, point, has_others); });
}

}  // namespace vramfit
