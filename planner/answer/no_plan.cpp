#include "planner/answer/no_plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/process/in_parallel.h"
#include "job/cluster/cluster_text.h"
#include "job/cluster/host_memory.h"
#include "job/parameters/quantization.h"
#include "planner/answer/larger_cluster.h"
#include "planner/answer/plan_words.h"
#include "planner/search/best_first.h"
#include "planner/search/changes.h"
#include "planner/search/model_stages.h"

namespace vramfit {

namespace {

/// What is found on other clusters of the same GPUs.
struct ElsewhereFits {
  std::vector<OffloadedPlan> offloaded;  // the same cluster with host memory
  std::optional<OtherCluster> smaller, larger;
  SearchCounts counts;
};

ElsewhereFits search_elsewhere(const PlanRequest& request, const PlanRequest& asked,
                               const std::shared_ptr<ModelStages>& model) {
  ElsewhereFits found;
  if (!request.names_other_clusters) return found;
  // Where nobody said how much host memory there is, nothing was offloaded.
  found.offloaded = with_host_memory(request, model);
  // A choice that was set may take more where there are more ranks: replicas, groups of so many.
  found.smaller = smaller_cluster(asked, 0, found.counts, model);
  if (!found.smaller) found.larger = larger_cluster(asked, model);
  return found;
}

class NoPlan {
 public:
  NoPlan(const PlanRequest& request, Evaluator& evaluator, Plan& plan)
      : request_(request), evaluator_(evaluator), plan_(plan) {}

  void say_what_is_missing(const Job& smallest) {
    const Estimate& estimate = evaluator_.estimate_of(smallest);
    const RankEstimate& rank = worst_rank(estimate);
    plan_.closest = {.job = estimate.job, .total = rank.total};
    const bool lacks_host_memory = exceeds_host_memory(estimate.host_bytes, estimate.cluster);
    plan_.why = fmt::format("no plan{} fits {}: the smallest needs {}", set_choices(request_), request_.cluster.text,
                            lacks_host_memory ? estimate.why : shortage_text(rank, estimate.capacity));
  }

  // Names each choice that was set and without which the job would fit.
  void offer_open_rows() {
    for (const Dimension& row : dimensions()) {
      const std::string set = set_flags(request_, row);
      if (set.empty()) continue;
      PlanRequest open = request_;
      std::erase_if(open.fixed,
                    [&](const std::string& name) { return std::ranges::find(row.fields, name) != row.fields.end(); });
      offer("without " + set, fastest(open, groups_to_search(open)));
    }
  }

  // What matrices that are trained rule out where the card has their codes may need less: offloaded parameters.
  void offer_whole_weights() {
    const Quantization* const format = quantization_named(request_.job.quantization);
    if (format == nullptr || !format->trains || !request_.is_fixed("quantization")) return;
    PlanRequest whole = request_;
    whole.job.quantization = "none";
    std::erase(whole.fixed, "quantization");
    offer(fmt::format("without --quantization {}", format->name), fastest(whole, groups_to_search(whole)));
  }

  // Of each kind the smallest change that helps.
  void offer_changes(const std::vector<Change>& list) {
    for (auto begin = list.begin(); begin != list.end();) {
      const ResultChange* const kind = begin->kinds.front();
      const auto end =
          std::find_if(begin, list.end(), [&](const Change& change) { return change.kinds.front() != kind; });
      kind->shrinks ? offer_smallest({begin, end}) : offer_first({begin, end});
      begin = end;
    }
  }

  // Where neither a choice nor a change alone would do, also with a change that needs far less of it.
  void offer_host_memory(std::vector<OffloadedPlan> offloaded, const std::shared_ptr<ModelStages>& model) {
    if (!has_offer_ && offloaded.size() == 1) {
      std::optional<OffloadedPlan> less = with_less_host_memory(request_, offloaded.front().host, model);
      if (less) offloaded.push_back(*std::move(less));
    }
    for (const OffloadedPlan& each : offloaded) {
      const std::string change = each.needs.empty() ? "" : fmt::format("--allow {} and ", allow_text(each.needs));
      plan_.host_memory_would_do = true;
      plan_.why += fmt::format("{} with {}{} of host memory a node (--host-memory) it would fit at {}", joint(), change,
                               enough_gib_text(each.host), format_gib(each.total));
      has_offer_ = true;
    }
  }

  void offer_other_cluster(ElsewhereFits found) {
    plan_.search.bounds += found.counts.bounds;
    plan_.smaller_cluster = std::move(found.smaller);
    plan_.larger_cluster = std::move(found.larger);
    if (const std::optional<OtherCluster>& smaller = plan_.smaller_cluster) {
      plan_.why += fmt::format("{} {} alone would do, at {} a GPU", joint(), smaller->gpus, format_gib(smaller->total));
      return;
    }
    if (const std::optional<OtherCluster>& larger = plan_.larger_cluster) {
      plan_.why += fmt::format("{} {} would do, at {} a GPU", has_offer_ ? ", and" : ";", larger->gpus,
                               format_gib(larger->total));
      plan_.why += fewest_note(*larger);
    } else if (!has_offer_) {
      plan_.why += "; more or larger cards would help";
    }
  }

 private:
  // As a plan would answer.
  std::optional<Candidate> fastest(const PlanRequest& request, const std::vector<std::vector<Change>>& groups) {
    for (const std::vector<Change>& bases : groups) {
      if (std::optional<Candidate> found = fastest_that_fits(evaluator_, request, bases, -1, plan_.search))
        return found;
    }
    return std::nullopt;
  }

  // With what is allowed, too, where the change alone isn't enough.
  std::optional<Candidate> fastest_with(const Change& change) {
    return fastest(request_, groups_with(request_, change));
  }

  void offer_first(std::span<const Change> list) {
    for (const Change& change : list) {
      if (offer_allowed(fastest_with(change))) return;
    }
  }

  // Each needs less than those before it, so the last tells whether any helps. Those that are far from helping are
  // ruled out by bounds, so they take less time than one that helps.
  void offer_smallest(std::span<const Change> list) {
    const bool helps = surely_fits_with(list.back());
    std::optional<Candidate> last = helps ? std::nullopt : fastest_with(list.back());
    if (!helps && !last) return;
    for (const Change& change : list.first(list.size() - 1)) {
      if (offer_allowed(fastest_with(change))) return;
    }
    offer_allowed(helps ? fastest_with(list.back()) : std::move(last));
  }

  // Found out in less time than the fastest one is. Of other runtimes than the engine's, smallest ones take long to
  // find.
  bool surely_fits_with(const Change& change) {
    if (request_.job.runtime != Runtime::vramfit) return false;
    return std::ranges::any_of(groups_with(request_, change), [&](const std::vector<Change>& bases) {
      return surely_fits(evaluator_, request_, bases, plan_.search);
    });
  }

  bool offer_allowed(std::optional<Candidate> found) {
    if (!found) return false;
    const std::string how = "with --allow " + allow_text(found->needs);
    return offer(how, std::move(found));
  }

  // Says at what size the job would fit so, if it does.
  bool offer(const std::string& how, std::optional<Candidate> found) {
    if (!found) return false;
    found->why =
        fmt::format("{}: {:.0f} tokens/s, needs {}", how, found->tokens_per_second, needs_text(found->estimate));
    plan_.why += fmt::format("{} {} it would fit at {}", joint(), how, format_gib(worst_total(found->estimate)));
    has_offer_ = true;
    plan_.alternatives.push_back(*std::move(found));
    return true;
  }

  /// Between more than two nodes and half of them are sizes that nobody tried.
  static std::string fewest_note(const OtherCluster& larger) {
    const Cluster cluster = parse_cluster(larger.gpus);
    if (cluster.nodes <= 2) return "";
    return fmt::format(" (of sizes that double; --gpus auto:{}x{} finds the fewest)", cluster.cards_per_node,
                       card_text(larger.gpus));
  }

  const char* joint() const { return has_offer_ ? ", or" : ";"; }

  const PlanRequest& request_;
  Evaluator& evaluator_;
  Plan& plan_;
  bool has_offer_ = false;
};

}  // namespace

void explain_no_plan(const PlanRequest& request, const PlanRequest& asked, Evaluator& evaluator, const Job& smallest,
                     Plan& plan) {
  NoPlan none(request, evaluator, plan);
  none.say_what_is_missing(smallest);
  ElsewhereFits elsewhere;
  const auto model = std::make_shared<ModelStages>(request.spec, request.cluster.card.device);
  // Other clusters have evaluators of their own, so they are searched meanwhile.
  in_parallel(2, [&](std::size_t part) {
    if (part == 1) {
      elsewhere = search_elsewhere(request, asked, model);
      return;
    }
    none.offer_open_rows();
    none.offer_whole_weights();
    none.offer_changes(changes_not_allowed(request, false));
    none.offer_changes(changes_not_allowed(request, true));
  });
  none.offer_host_memory(std::move(elsewhere.offloaded), model);
  none.offer_other_cluster(std::move(elsewhere));
}

}  // namespace vramfit
