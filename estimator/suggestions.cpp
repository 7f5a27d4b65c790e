#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "estimator/result_changes.h"
#include "job/cluster/cluster_text.h"
#include "job/fields/job_fields.h"
#include "job/loss_options.h"
#include "job/resolve_job.h"
#include "job/sharding.h"
#include "model_specs/loss_layout.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"
#include "program/stages/optimizer_in_backward.h"

namespace vramfit {

namespace {

constexpr std::size_t kMostSuggestions = 6;
// Each suggestion is an estimate. A model of more segments than twice the deepest published one's 126 layers gets the
// first few, so that an answer takes less than two seconds.
constexpr std::size_t kManySegments = 256, kFewSuggestions = 3;
constexpr std::int64_t kSuggestedChunks = 8;
constexpr const char* kChangesResult = " (changes the result)";

/// A job and cluster with one change, and the change as flags.
struct Change {
  std::string flags;
  Job job;
  Cluster cluster;
};

using Maker = std::optional<Change> (*)(const Estimate& e);

std::optional<Change> checkpoint(const Estimate& e) {
  if (std::holds_alternative<FullCheckpointing>(e.job.checkpointing)) return std::nullopt;
  Change change{"--checkpointing full", e.job, e.cluster};
  change.job.checkpointing = FullCheckpointing{};
  return change;
}

std::optional<Change> chunk_loss(const Estimate& e) {
  if (std::holds_alternative<ChunkedLoss>(e.job.loss)) return std::nullopt;
  const Breakdown& at_peak = e.ranks.front().breakdown;
  if (at_peak.categories[static_cast<std::size_t>(Category::logits_and_loss)].n == 0) return std::nullopt;
  Change change{fmt::format("--loss chunked:{}", kSuggestedChunks), e.job, e.cluster};
  change.job.loss = ChunkedLoss{kSuggestedChunks};
  return change;
}

/// The same global batch in smaller micro-batches.
std::optional<Change> halve_micro_batch(const Estimate& e) {
  if (e.job.micro_batch % 2 != 0) return std::nullopt;
  Change change{"", e.job, e.cluster};
  change.job.micro_batch /= 2;
  change.job.accumulation *= 2;
  change.flags = fmt::format("--micro-batch {} --grad-accum {}", change.job.micro_batch, change.job.accumulation);
  return change;
}

std::optional<Change> shard_fully(const Estimate& e) {
  if (e.job.sharding == "full-shard" || e.cluster.cards() == 1) return std::nullopt;
  Change change{"--sharding full-shard", e.job, e.cluster};
  change.job.sharding = "full-shard";
  change.job.reshard = ReshardByDefault{};
  change.job.mesh = {.replicate = 0, .shard = 0};
  return change;
}

std::optional<Change> reshard_always(const Estimate& e) {
  if (!sharding_named(e.job.sharding).reshard || std::holds_alternative<ReshardAlways>(e.job.reshard) ||
      e.job.mesh.shard == 1) {
    return std::nullopt;
  }
  Change change{"--reshard always", e.job, e.cluster};
  change.job.reshard = ReshardAlways{};
  return change;
}

/// Twice the cards with the same rows each: smaller shards of everything that is sharded.
std::optional<Change> double_cards(const Estimate& e) {
  if (!sharding_named(e.job.sharding).parameters || e.cluster.cards_per_node > 512) return std::nullopt;
  Change change{"", e.job, e.cluster};
  Cluster& cluster = change.cluster;
  // Assumes eight cards per node.
  std::int64_t& more = cluster.nodes == 1 && cluster.cards_per_node < 8 ? cluster.cards_per_node : cluster.nodes;
  more *= 2;
  cluster.text = cluster_text(cluster.nodes, cluster.cards_per_node, card_text(e.cluster.text));
  change.flags = "--gpus " + cluster.text;
  change.job.mesh = {.replicate = 0, .shard = 0};
  change.job.global_batch = 0;
  return change;
}

/// Gradients of one unit or two instead of all.
std::optional<Change> update_in_backward(const Estimate& e) {
  if (e.job.runtime != Runtime::vramfit || e.job.optimizer_in_backward) return std::nullopt;
  Change change{"--optimizer-in-backward on", e.job, e.cluster};
  change.job.optimizer_in_backward = true;
  return change;
}

/// Expandable segments leave fewer gaps; other allocator settings stay as they are.
std::optional<Change> expand_segments(const Estimate& e) {
  if (e.cluster.is_cpu() || e.job.allocator != "native") return std::nullopt;
  Change change{"--allocator expandable", e.job, e.cluster};
  change.job.allocator = "expandable";
  return change;
}

constexpr std::array<Maker, 8> kSameResult{checkpoint,     chunk_loss,         halve_micro_batch, shard_fully,
                                           reshard_always, update_in_backward, double_cards,      expand_segments};

/// The smallest change of each kind. A smaller global batch has fewer micro-batches of the same size.
std::vector<Change> changes_of_result(const Estimate& e, const ModelSpec& spec) {
  std::vector<Change> changes;
  for (const ResultChange& kind : result_changes()) {
    std::vector<Job> choices = kind.choices(e.job, spec, {});
    if (choices.empty()) continue;
    Job& job = choices.front();
    std::string flags = fmt::format("{} {}", flag_of(job_field_named(kind.field)), kind.value(job));
    if (job.micro_batch == 0) {
      job.micro_batch = e.job.micro_batch;
      job.accumulation = e.job.accumulation / 2;
      flags += fmt::format(" --grad-accum {}", job.accumulation);
    }
    changes.push_back({flags + kChangesResult, std::move(job), e.cluster});
  }
  return changes;
}

std::vector<Change> changes_of(const Estimate& e, const ModelSpec& spec) {
  std::vector<Change> changes;
  for (const Maker maker : kSameResult) {
    if (std::optional<Change> change = maker(e)) changes.push_back(*std::move(change));
  }
  std::ranges::move(changes_of_result(e, spec), std::back_inserter(changes));
  return changes;
}

/// How many steps show the peak: runtime vramfit makes states at load, PyTorch's optimizers in the first step.
int steps_to_peak(const Job& job) { return job.runtime == Runtime::vramfit ? 1 : 2; }

/// Whether the changed job requests as much at once as the present one: what it reserves less would be an accident of
/// fragments, and its events need not be looked at. Only another allocator is about fragments.
bool requests_as_much(const program::Program& program, const Job& changed, const Estimate& e) {
  return changed.allocator == e.job.allocator &&
         folded_peaks(program, Bytes{1}).requested >= e.ranks.front().peak_requested;
}

/// How the changed job would do, if it needs less.
std::optional<RankEstimate> changed_rank(const Graph& graph, const Job& job, const Cluster& cluster, const Estimate& e,
                                         bool clip) {
  const CountOptions options{.run = {.clip = clip}, .steps = steps_to_peak(job)};
  const program::Program program = program::make_program(
      {.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .run = options.run, .labels = false});
  if (requests_as_much(program, job, e)) return std::nullopt;
  return estimate_program_below(program, graph, job, cluster, {options, e.ranks.front().total});
}

}  // namespace

std::vector<Suggestion> suggest(const Estimate& e, const ModelSpec& spec, const Graph& graph, bool clip) {
  std::vector<Suggestion> suggestions;
  const Bytes now = e.ranks.front().total;
  std::size_t tried = 0;
  Graph other;  // of a job whose loss is another one
  for (const Change& change : changes_of(e, spec)) {
    if (graph.segments.size() > kManySegments && ++tried > kFewSuggestions) break;
    try {
      std::vector<std::string> notes;
      const Job job = resolve_job(change.job, spec, change.cluster, notes);
      require_rules(job, change.cluster);
      require_optimizer_in_backward(job, clip);
      const bool same_graph = loss_options(job) == loss_options(e.job) && has_adapters(job) == has_adapters(e.job);
      if (!same_graph) other = has_adapters(job) ? training_graph(spec, job) : with_loss(graph, loss_options(job));
      const std::optional<RankEstimate> rank = changed_rank(same_graph ? graph : other, job, change.cluster, e, clip);
      if (!rank) continue;
      suggestions.push_back({.change = change.flags,
                             .total_after = rank->total,
                             .saved = now - rank->total,
                             .fits = verdict_of(*rank, change.cluster) == Verdict::fits});
    } catch (const Error&) {
      continue;  // a change that can't be made or counted is no suggestion
    }
  }
  std::ranges::stable_sort(suggestions, std::greater{}, &Suggestion::saved);
  if (suggestions.size() > kMostSuggestions) suggestions.resize(kMostSuggestions);
  return suggestions;
}

}  // namespace vramfit
