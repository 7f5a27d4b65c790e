#include "estimator/fit_on_cards.h"

#include <algorithm>

#include "base/error.h"
#include "base/process/in_parallel.h"
#include "estimator/least/least_while_updating.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "program/make_program.h"
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

/// What is requested where some are asked about, and its fold.
struct FitOnCards::Requests {
  Ledger ledger;
  Bytes below;  // more than any of their cards has for the allocator
  std::optional<RankEstimate> rank;
  bool is_folded = false;
  Bytes activations;  // peak_activations()
};

/// What some clusters have in common, whose cards differ in their memory alone, and in what lies outside the allocator.
struct FitOnCards::Asked {
  std::vector<std::size_t> clusters;  // by number
  std::vector<Bytes> outside;         // of each: outside_allocator()
  Job job;                            // resolved
  std::string text;                   // without_ranks()
  const Graph* graph = nullptr;
  Bytes activations;  // at once, as known; none: not known
  Bytes below;        // as Requests has it; none: it certainly fits on none of them
  std::optional<Requests> made;
  std::size_t requests = 0;  // the number of those that are alike, where it has made some
  Fit none;                  // the answer where it doesn't fit
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

void FitOnCards::ask(Asked& asked, std::span<const Cluster> clusters) {
  const Cluster& first = clusters[asked.clusters.front()];
  std::vector<std::string> notes;
  asked.job = resolve_job(job_on_(first), spec_, first, notes);
  require_rules(asked.job, first);
  asked.text = without_ranks(asked.job);
  const Graph& graph = graph_of(asked.job, asked.text);
  asked.graph = &graph;
  asked.activations = known_activations(first.card.device, asked.text);
  const Bytes in_step = least_between_updates(graph, asked.job) + asked.activations;
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
  if (may_fit) asked.below = below;
}

void FitOnCards::make_requests(Asked& asked, const Device& device) const {
  const program::Program program = program::make_program({.graph = *asked.graph,
                                                          .job = asked.job,
                                                          .device = device,
                                                          .coords = {},
                                                          .run = run_,
                                                          .labels = false,
                                                          .calls = false});
  Requests made{.ledger = events_of(program, {.run = run_}), .below = asked.below, .rank = {}, .activations = {}};
  if (asked.activations.n == 0) made.activations = peak_activations(program);
  if (is_arena(asked.job.allocator)) {  // which packs what the program says beside its events
    made.rank = fold_in_arena_below(program, made.ledger, device, asked.below);
    made.is_folded = true;
  }
  asked.made = std::move(made);
}

/// Those that are alike are one.
std::vector<FitOnCards::Requests> FitOnCards::gathered(std::span<Asked> all, std::span<const Cluster> clusters) {
  std::vector<Requests> requests;
  for (Asked& asked : all) {
    if (!asked.made) continue;
    const Device& device = clusters[asked.clusters.front()].card.device;
    if (asked.activations.n == 0) activations_.push_back({device, asked.text, asked.made->activations});
    const auto alike = std::ranges::find_if(requests, [&](const Requests& other) {
      return !other.is_folded && !asked.made->is_folded && is_alike(other.ledger, asked.made->ledger);
    });
    asked.requests = static_cast<std::size_t>(alike - requests.begin());
    if (alike != requests.end()) {
      alike->below = std::max(alike->below, asked.below);
      asked.made->ledger = {};
    } else {
      requests.push_back(*std::move(asked.made));
    }
  }
  return requests;
}

/// Sorts of cards are asked about and requests folded beside each other, on the processor's cores.
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
  const auto unless_refused = [](Asked& asked, const auto& work) {
    try {
      work();
    } catch (const InputError& error) {
      asked.none.refusal = error.what();
    } catch (const NotModelled& error) {
      asked.none.lacking = error.feature_name;
    }
  };
  std::vector<Asked*> open;
  for (Asked& asked : all) {
    unless_refused(asked, [&] { ask(asked, clusters); });
    if (asked.below.n > 0) open.push_back(&asked);
  }
  in_parallel(open.size(), [&](std::size_t i) {
    Asked& asked = *open[i];
    unless_refused(asked, [&] { make_requests(asked, clusters[asked.clusters.front()].card.device); });
  });
  std::vector<Requests> requests = gathered(all, clusters);
  std::vector<const Job*> jobs(requests.size());
  for (const Asked* asked : open) {
    if (asked->made && jobs[asked->requests] == nullptr) jobs[asked->requests] = &asked->job;
  }
  in_parallel(requests.size(), [&](std::size_t i) {
    Requests& made = requests[i];
    if (!made.is_folded) made.rank = fold_below(made.ledger, *jobs[i], made.below);
  });
  std::vector<Fit> fits(clusters.size());
  for (const Asked& asked : all) {
    for (std::size_t i = 0; i < asked.clusters.size(); ++i) {
      Fit& fit = fits[asked.clusters[i]] = asked.none;
      if (!asked.made || !requests[asked.requests].rank) continue;
      const Cluster& cluster = clusters[asked.clusters[i]];
      RankEstimate rank = *requests[asked.requests].rank;
      complete_below(rank, requests[asked.requests].ledger, asked.job, cluster, {.outside = asked.outside[i]});
      if (verdict_of(rank, cluster) == Verdict::fits) fit.rank = std::move(rank);
    }
  }
  return fits;
}

}  // namespace vramfit
