#include "estimator/time/recorded_runs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers/median.h"
#include "base/text/suggest.h"
#include "estimator/rank_estimate.h"
#include "estimator/time/seconds.h"
#include "program/make_program.h"
#include "program/stages/adapters.h"

namespace vramfit {

namespace {

void check_run(const RunRecord& run, const Cluster& cluster, const std::string& file) {
  const auto refuse = [&](const std::string& why) { throw InputError(fmt::format("{}: {}", printable(file), why)); };
  if (run.device == "phantom") refuse("was rehearsed on phantom GPUs, on which nothing takes time");
  if ((run.device == "cpu") != cluster.is_cpu()) {
    refuse(fmt::format("ran on {}, --gpus asks for {}", printable(run.device), printable(cluster.text)));
  }
  if (!cluster.is_cpu() && run.cluster.card.name != cluster.card.name) {
    refuse(fmt::format("ran on {}, --gpus asks for {}", printable(run.cluster.card.name), cluster.card.name));
  }
  if (run.step_seconds.size() < 2) refuse("has no step after the first, which takes longer than others");
}

void check_model(const RunRecord& run, const Graph& graph, const ModelSpec& spec, const std::string& file) {
  std::int64_t parameters = 0;
  for (const Parameter& parameter : graph.parameters) parameters += element_count(parameter);
  if (parameters == run.parameters) return;
  throw InputError(fmt::format("{}: its model {} has {} parameters, {} has {}", printable(file),
                               printable(run.model_name), run.parameters, printable(spec.name), parameters));
}

}  // namespace

double measured_step_seconds(const RunRecord& run) {
  std::vector<double> seconds(run.step_seconds.begin() + std::min<std::ptrdiff_t>(1, std::ssize(run.step_seconds)),
                              run.step_seconds.end());
  return seconds.empty() ? 0 : median(std::move(seconds));
}

double step_share_of_run(const RunRecord& run, const ModelSpec& spec, const Cluster& cluster,
                         const Efficiency& efficiency, const std::string& file) {
  check_run(run, cluster, file);
  const double measured = measured_step_seconds(run);
  if (!(measured > 0)) throw InputError(fmt::format("{}: step_seconds: are not positive", printable(file)));
  const Graph graph = training_graph(spec, run.job);
  check_model(run, graph, spec, file);
  // Of its own ranks, on the card that is asked for.
  Cluster ran = cluster;
  ran.nodes = run.cluster.nodes;
  ran.cards_per_node = run.cluster.cards_per_node;
  if (cluster.is_cpu()) ran.card = run.cluster.card;
  const program::Program program = program::make_program({.graph = graph,
                                                          .job = run.job,
                                                          .device = ran.card.device,
                                                          .coords = {},
                                                          .run = {.clip = run.effects.value_or(RunEffects{}).clip},
                                                          .labels = false});
  const Bytes outside = outside_allocator(graph, run.job, ran);
  Efficiency tried = efficiency;
  double low = std::log(1e-4), high = std::log(most_share(cluster));
  double& share = tried.*step_share_on(ran).value;
  constexpr int kHalvings = 50;  // until the ends are neighbours
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    share = std::exp(middle);
    (seconds_of(program, ran, tried, outside).step_seconds > measured ? low : high) = middle;
  }
  return std::min(std::exp(high), most_share(cluster));
}

}  // namespace vramfit
