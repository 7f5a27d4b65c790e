#include "estimator/fit_on_cards.h"

#include <algorithm>

#include "base/error.h"
#include "estimator/least/least_while_updating.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "program/not_modelled.h"
#include "program/readers/peak_activations.h"
#include "program/stages/adapters.h"

namespace vramfit {

namespace {

bool is_alike(const Device& a, const Device& b) {
  return a.kind == b.kind && a.compute_capability == b.compute_capability && a.sm_count == b.sm_count &&
         a.threads == b.threads && a.onednn_bf16 == b.onednn_bf16;
}

/// Whether an allocator that is asked for both is asked for the same.
bool is_alike(const Event& a, const Event& b) {
  return a.bytes == b.bytes && a.id == b.id && a.stream == b.stream && a.step == b.step;
}

bool is_alike(const Repeat& a, const Repeat& b) { return a.begin == b.begin && a.end == b.end && a.times == b.times; }

bool is_alike(const Ledger& a, const Ledger& b) {
  const auto are_events = [](const Event& x, const Event& y) { return is_alike(x, y); };
  const auto are_repeats = [](const Repeat& x, const Repeat& y) { return is_alike(x, y); };
  return std::ranges::equal(a.repeats, b.repeats, are_repeats) && std::ranges::equal(a.events, b.events, are_events);
}

/// The job but for its ranks, as text.
std::string without_ranks(Job job) {
  job.mesh = {};
  job.global_batch = 0;
  return job_as_flags(job, unresolved_job());
}

}  // namespace

/// What some clusters have in common, whose cards differ in their memory alone, and in what lies outside the allocator.
struct FitOnCards::Asked {
  std::vector<std::size_t> clusters;  // by number
  std::vector<Bytes> outside;         // of each: outside_allocator()
  Job job;                            // resolved
  std::optional<std::size_t> requests;
};

/// What is requested where some are asked about, and its fold.
struct FitOnCards::Requests {
  Ledger ledger;
  Bytes below;  // more than any of their cards has for the allocator
  std::optional<RankEstimate> rank;
  bool is_folded = false;
};

Bytes FitOnCards::known_activations(const Device& device, const std::string& job) const {
  const auto known = std::ranges::find_if(
      activations_, [&](const Activations& each) { return is_alike(each.device, device) && each.job == job; });
  return known == activations_.end() ? Bytes{} : known->peak;
}

const Graph& FitOnCards::graph_of(const Job& job, const std::string& text) {
  const auto known = graphs_.find(text);
  return known != graphs_.end() ? known->second : graphs_.emplace(text, training_graph(spec_, job)).first->second;
}

void FitOnCards::ask(Asked& asked, std::span<const Cluster> clusters, std::vector<Requests>& requests) {
  const Cluster& first = clusters[asked.clusters.front()];
  std::vector<std::string> notes;
  asked.job = resolve_job(job_on_(first), spec_, first, notes);
  require_rules(asked.job, first);
  const std::string job = without_ranks(asked.job);
  const Graph& graph = graph_of(asked.job, job);
  const Bytes activations = known_activations(first.card.device, job);
  const Bytes in_step = least_between_updates(graph, asked.job) + activations;
  const Bytes least = std::max(least_while_updating(graph, asked.job), in_step);
  Bytes below;
  bool may_fit = false;
  for (const std::size_t number : asked.clusters) {
    const Cluster& cluster = clusters[number];
    const Bytes outside = outside_allocator(graph, asked.job, cluster);
    asked.outside.push_back(outside);
    may_fit = may_fit || !exceeds_card(least, outside, asked.job, cluster);
    below = std::max(below, cluster.card.memory + Bytes{1} - std::min(outside, cluster.card.memory));
  }
  if (!may_fit) return;
  const program::Program program = program_of(graph, asked.job, first, run_);
  if (activations.n == 0) activations_.push_back({first.card.device, job, peak_activations(program)});
  Requests made{.ledger = events_of(program, {.run = run_}), .below = below, .rank = {}};
  if (is_arena(asked.job.allocator)) {  // which packs what the program says beside its events
    made.rank = fold_in_arena_below(program, made.ledger, first.card.device, below);
    made.is_folded = true;
  } else {
    const auto alike =
        std::ranges::find_if(requests, [&](const Requests& other) { return is_alike(other.ledger, made.ledger); });
    if (alike != requests.end()) {
      alike->below = std::max(alike->below, below);
      asked.requests = static_cast<std::size_t>(alike - requests.begin());
      return;
    }
  }
  asked.requests = requests.size();
  requests.push_back(std::move(made));
}

std::vector<Fit> FitOnCards::of(std::span<const Cluster> clusters) {
  std::vector<Asked> all;
  for (std::size_t number = 0; number < clusters.size(); ++number) {
    const Card& card = clusters[number].card;
    const auto alike = std::ranges::find_if(all, [&](const Asked& asked) {
      const Card& other = clusters[asked.clusters.front()].card;
      return is_alike(other.device, card.device) && other.bf16 == card.bf16;
    });
    Asked& asked = alike == all.end() ? all.emplace_back() : *alike;
    asked.clusters.push_back(number);
  }
  std::vector<Fit> fits(clusters.size());
  std::vector<Requests> requests;
  for (Asked& asked : all) {
    Fit none;
    try {
      ask(asked, clusters, requests);
    } catch (const InputError& error) {
      none.refusal = error.what();
    } catch (const NotModelled& error) {
      none.lacking = error.feature_name;
    }
    for (const std::size_t number : asked.clusters) fits[number] = none;
  }
  for (const Asked& asked : all) {
    if (!asked.requests) continue;
    Requests& made = requests[*asked.requests];
    if (!made.is_folded) made.rank = fold_below(made.ledger, asked.job, made.below);
    made.is_folded = true;
    if (!made.rank) continue;
    for (std::size_t i = 0; i < asked.clusters.size(); ++i) {
      const Cluster& cluster = clusters[asked.clusters[i]];
      RankEstimate rank = *made.rank;
      complete_below(rank, made.ledger, asked.job, cluster, {.outside = asked.outside[i]});
      if (verdict_of(rank, cluster) == Verdict::fits) fits[asked.clusters[i]].rank = std::move(rank);
    }
  }
  return fits;
}

}  // namespace vramfit
