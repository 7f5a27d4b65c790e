#include "cli/run/run_phantom.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/compare/compare.h"
#include "cli/files.h"
#include "cli/rehearse/processes/environment.h"
#include "cli/rehearse/processes/phantom_library.h"
#include "cli/rehearse/processes/session_folder.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

constexpr double kTolerance = 0.02;  // of the verdict in the comparison's first line, as compare's own

}  // namespace

std::optional<int> played_rank(const PhantomRun& run) {
  if (run.ranks == "all") return std::nullopt;
  if (run.ranks.empty()) return 0;
  try {
    return static_cast<int>(whole_number(run.ranks, 0, run.plan.cluster.cards() - 1));
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("--ranks: \"all\", or one rank of {}: {}", printable(run.plan.cluster.text), error.what()));
  }
}

void check_phantom_run(const PhantomRun& run) {
  const Cluster& cluster = run.plan.cluster;
  if (cluster.is_cpu()) {
    throw InputError(fmt::format("--device phantom plays GPUs; the plan is for {}", printable(cluster.text)));
  }
  if (!played_rank(run) && cluster.nodes > 1) {
    throw InputError(fmt::format("--ranks all: the ranks of one node can be started, {} has {}; play one: --ranks 0",
                                 printable(cluster.text), cluster.nodes));
  }
}

RunEnd run_recorded_on_phantoms(const PlanFile& plan, std::optional<int> played, LaunchOptions launch) {
  const Cluster& cluster = plan.cluster;
  const std::string library = find_phantom_library();
  const SessionFolder session("");
  write_file(session.path() + "/session.json", session_to_json(cluster, played, {}));
  const EnvironmentChanges environment = phantom_environment(library, session.path());
  launch.environment.insert(launch.environment.end(), environment.begin(), environment.end());
  launch.ranks = static_cast<int>(cluster.cards());
  launch.ranks_per_node = static_cast<int>(cluster.cards_per_node);
  launch.played = played;
  if (played) launch.arguments.insert(launch.arguments.end(), {"--ghosts", "on"});
  return launch_recorded(std::move(launch), session.path());
}

void show_comparison(const PlanFile& plan, const std::string& record) {
  write_file("-", comparison_text(compare(plan, run_from_json(record, "run.json"), kTolerance)));
}

int run_on_phantoms(const PhantomRun& run, LaunchOptions launch) {
  const RunEnd end = run_recorded_on_phantoms(run.plan, played_rank(run), std::move(launch));
  if (end.record.empty()) return end.exit_code;
  if (!run.output.empty()) write_file(run.output, end.record);
  if (!is_stdout(run.output)) show_comparison(run.plan, end.record);
  return end.exit_code;
}

}  // namespace vramfit
