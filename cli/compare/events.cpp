#include "cli/compare/events.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "estimator/rank_estimate.h"
#include "program/ledger/event_lines.h"
#include "program/ledger/ledger_diff.h"
#include "program/readers/count.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

constexpr int kSteps = 2;
constexpr std::int64_t kMostPasses = std::int64_t{1} << 18;  // of a segment: about as many events as a file may hold

void check_size(const Graph& graph, const Job& job) {
  if (job.accumulation <= kMostPasses / static_cast<std::int64_t>(graph.segments.size())) return;
  throw InputError(
      fmt::format("--events: {} micro-batches a step are too many to compare allocation by allocation: "
                  "compare a run with a smaller --grad-accum",
                  job.accumulation));
}

/// Those that can be seen in the events: a full checkpoint, or the adapters, are written after the last step, which may
/// not be among them.
RunEffects effects_seen(const PlanFile& plan, const RunRecord& run, const Ledger& measured) {
  RunEffects effects = run.effects.value_or(RunEffects{.clip = plan.clip});
  const bool is_seen =
      std::ranges::find(measured.events, Phase::checkpoint_save, &Event::phase) != measured.events.end();
  effects.saves_full = effects.saves_full && is_seen;
  effects.saves_adapters = effects.saves_adapters && is_seen;
  return effects;
}

ComparedEvents compare_rank(const PlanFile& plan, const RunRecord& run, const RankEstimate& rank,
                            const std::string& file) {
  const Graph graph = training_graph(plan.spec, plan.job);
  const Ledger measured = ledger_from_lines(read_file(file), printable(file), kSteps);
  const std::int32_t steps = measured.events.empty() ? 0 : measured.events.back().step;
  const Ledger predicted = count(graph, plan.job, plan.cluster.card.device, rank.coords,
                                 {.run = effects_seen(plan, run, measured), .steps = steps, .abbreviate = false});
  const LedgerDifference difference = compare_ledgers(predicted, measured);
  return {
      .rank = rank.first_rank, .compared = difference.compared, .first_difference = printable(difference.first, 400)};
}

}  // namespace

std::vector<ComparedEvents> compare_events(const PlanFile& plan, const RunRecord& run, const std::string& directory) {
  const Graph graph = training_graph(plan.spec, plan.job);
  check_size(graph, plan.job);
  std::vector<ComparedEvents> compared;
  for (const MeasuredRank& rank : run.ranks) {
    const std::string file = fmt::format("{}/rank{}.jsonl", directory, rank.memory.first_rank);
    if (std::filesystem::exists(file)) compared.push_back(compare_rank(plan, run, rank.memory, file));
  }
  if (compared.empty()) {
    throw InputError(
        fmt::format("--events {}: has no rankN.jsonl of this run: name the folder that vramfit run --events wrote",
                    printable(directory)));
  }
  return compared;
}

}  // namespace vramfit
