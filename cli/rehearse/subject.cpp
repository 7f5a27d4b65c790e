#include "cli/rehearse/subject.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/shell_quoted.h"
#include "base/text/suggest.h"
#include "cli/rehearse/launchers/launchers.h"
#include "job/cluster/context.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

Cluster phantom_cluster(const RehearseFlags& flags) {
  if (flags.gpus.empty()) throw InputError("--gpus: missing; say what to play, such as --gpus 8xH100-80GB");
  Cluster cluster = parse_cluster(flags.gpus);
  if (cluster.is_cpu()) {
    throw InputError(
        fmt::format("--gpus {}: CPU ranks need no phantom; start CMD as it is, or play a GPU", cluster.text));
  }
  cluster.card.context = context_of(Runtime::pytorch, cluster.card);  // as of every program of PyTorch
  return cluster;
}

/// Of --ranks worst it is the first that is played.
std::optional<std::int64_t> played_rank(const RehearseFlags& flags, const Cluster& cluster) {
  if (plays_worst(flags)) return 0;
  if (flags.ranks == "all") return std::nullopt;
  try {
    return whole_number(flags.ranks, 0, cluster.cards() - 1);
  } catch (const InputError& error) {
    throw InputError(fmt::format(R"(--ranks: "all", "worst", or one rank of {}: {})", cluster.text, error.what()));
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
    throw InputError("CMD: --recipe writes and starts its own script");
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

}  // namespace

Subject::Subject(const RehearseFlags& flags, const RehearsalRequest& request) : command_(flags.command) {
  // Ranks of several nodes are started by vramfit, each as if it were played alone.
  const auto rank = request.cluster.nodes > 1 ? request.played_rank.value_or(0) : request.played_rank;
  if (!flags.recipe.name.empty()) recipe_.emplace(flags.recipe, request.cluster, rank, flags.keep);
}

std::vector<std::string> Subject::command(const SearchPoint& point) const {
  return recipe_ ? recipe_->command(point) : with_values(command_, point);
}

std::vector<std::string> Subject::identity(const SearchPoint& point) const {
  return recipe_ ? recipe_->identity(point) : with_values(command_, point);
}

std::vector<std::string> Subject::notes() const { return recipe_ ? recipe_->notes() : std::vector<std::string>{}; }

std::string Subject::kept_session(const std::string& keep) const { return recipe_ ? recipe_->kept_session() : keep; }

bool plays_worst(const RehearseFlags& flags) { return flags.ranks == "worst"; }

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

std::optional<int> jobs_of(const RehearseFlags& flags) {
  constexpr int kMostJobs = 256;
  if (flags.jobs.empty() || flags.jobs == "auto") return std::nullopt;
  try {
    return static_cast<int>(whole_number(flags.jobs, 1, kMostJobs));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--jobs: \"auto\", or a number: {}", error.what()));
  }
}

void refuse_search_flags(const RehearseFlags& flags) {
  if (!flags.cache.empty()) throw InputError("--cache: keeps the results of a --search, which is missing");
  if (!flags.warm.empty()) throw InputError("--warm: is for the rehearsals of a --search, which is missing");
}

void refuse_files(const RehearseFlags& flags, const char* several) {
  for (const auto& [flag, value] : {std::pair("--snapshot", &flags.snapshot), std::pair("--trace", &flags.trace),
                                    std::pair("--keep", &flags.keep)}) {
    if (!value->empty()) throw InputError(fmt::format("{}: is of one rehearsal, and {} makes several", flag, several));
  }
}

void say_verdict(const RehearsalTrial& trial) {
  const char* origin = trial.is_cached ? " (cached)" : "";
  complain("vramfit", fmt::format("{}: {}{}", point_text(trial.point), trial.verdict, origin));
}

}  // namespace vramfit
