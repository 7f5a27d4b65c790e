#include "planner/answer/no_plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/process/in_parallel.h"
#include "job/cluster/cluster_text.h"
#include "job/cluster/host_memory.h"
#include "job/fields/job_fields.h"
#include "job/parameters/quantization.h"
#include "job/resolve_job.h"
#include "job/stacks/sharded_instead.h"
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
  // Where nobody said how much host memory there is, nothing was offloaded; and more than there is may do.
  if (request.names_host_memory) found.offloaded = with_host_memory(request, model);
  if (!request.names_other_clusters) return found;
  // A choice that was set may take more where there are more ranks: replicas, groups of so many.
  found.smaller = smaller_cluster(asked, 0, found.counts, model);
  if (!found.smaller) found.larger = larger_cluster(asked, model);
  return found;
}

class Explanation {
 public:
  Explanation(const PlanRequest& request, const PlanRequest& asked, Evaluator& evaluator, Plan& plan)
      : request_(request),
        asked_(asked),
        evaluator_(evaluator),
        plan_(plan),
        none_(plan.none ? *plan.none : plan.none.emplace()) {}

  void say_what_is_missing(const Job& smallest) {
    const Estimate& estimate = evaluator_.estimate_of(smallest);
    const RankEstimate& rank = worst_rank(estimate);
    plan_.closest = {.job = estimate.job, .total = rank.total};
    const bool lacks_host_memory = exceeds_host_memory(estimate.host_bytes, estimate.cluster);
    const bool lacks_card_memory = verdict_of(rank, estimate.cluster.card.memory) != Verdict::fits;
    if (lacks_host_memory && !lacks_card_memory) {
      say_that_it_lacks_host(estimate.host_bytes);
    } else if (lacks_host_memory) {
      say_that_it_lacks("the smallest", fmt::format("{}, and {}", shortage_text(rank, estimate.cluster),
                                                    host_shortage_text(estimate.host_bytes, estimate.cluster)));
    } else {
      say_that_it_lacks("the smallest", shortage_text(rank, estimate.cluster));
    }
  }

  // Names each choice that was set and without which the job would fit.
  void offer_open_rows() {
    for (const Dimension& row : dimensions()) {
      const std::string set = set_flags(request_, row);
      if (set.empty()) continue;
      PlanRequest open = request_;
      std::erase_if(open.fixed,
                    [&](const std::string& name) { return std::ranges::find(row.fields, name) != row.fields.end(); });
      offer("without", set, fastest(open, groups_to_search(open)));
    }
    offer_sharded();
  }

  // What matrices that are trained rule out where the card has their codes may need less: offloaded parameters.
  void offer_whole_weights() {
    const Quantization* const format = quantization_named(request_.job.quantization);
    if (format == nullptr || !format->trains || !request_.is_fixed("quantization")) return;
    PlanRequest whole = request_;
    whole.job.quantization = "none";
    std::erase(whole.fixed, "quantization");
    offer("without", fmt::format("--quantization {}", format->name), fastest(whole, groups_to_search(whole)));
  }

  // Of each kind the smallest change that helps.
  void offer_changes(std::vector<Change> list) {
    std::erase_if(list, [&](const Change& change) { return request_.is_decided(change.kinds.front()->field); });
    for (auto begin = list.begin(); begin != list.end();) {
      const ResultChange* const kind = begin->kinds.front();
      const auto end =
          std::find_if(begin, list.end(), [&](const Change& change) { return change.kinds.front() != kind; });
      kind->shrinks ? offer_smallest({begin, end}) : offer_first({begin, end});
      begin = end;
    }
  }

  void offer_elsewhere(ElsewhereFits found, const std::shared_ptr<ModelStages>& model) {
    name_the_least_host_memory(found.offloaded);
    offer_host_memory(std::move(found.offloaded), model);
    offer_other_cluster(std::move(found));
  }

 private:
  void say_that_it_lacks(std::string_view which, std::string needs) {
    std::string lacks = fmt::format("no plan{} fits {}{}: {} needs {}", set_choices(request_), request_.cluster.text,
                                    decided_choices(request_), which, needs);
    plan_.why.replace(0, none_.lacks.size(), lacks);
    none_.needs = std::move(needs);
    none_.lacks = std::move(lacks);
  }

  void say_that_it_lacks_host(Bytes of_a_node) {
    say_that_it_lacks("what the card holds", host_shortage_text(of_a_node, request_.cluster));
    enough_host_memory_ = of_a_node;
  }

  // What needs least of the card need not need least of the host: a plan without changes may do with less.
  void name_the_least_host_memory(const std::vector<OffloadedPlan>& offloaded) {
    if (!enough_host_memory_ || offloaded.empty()) return;
    const OffloadedPlan& plan = offloaded.front();
    if (!plan.needs.empty() || plan.host >= *enough_host_memory_) return;
    plan_.closest = {.job = plan.job, .total = plan.total};
    say_that_it_lacks_host(plan.host);
  }

  // FSDP2 in place of DDP, where the library has another runtime for it: by the flag that asked for DDP.
  void offer_sharded() {
    std::optional<Job> sharded = sharded_instead(asked_.job, request_.cluster, request_.fixed);
    if (!sharded) return;
    PlanRequest request = request_;
    const JobField& field = job_field_named(request_.is_fixed("sharding") ? "sharding" : "runtime");
    const std::string flags = fmt::format("{} {}", flag_of(field), field.get(*sharded));
    try {
      std::vector<std::string> notes;
      request.job = resolve_job(*std::move(sharded), request.spec, request.cluster, notes);
      offer("with", flags, fastest(request, groups_to_search(request)));
    } catch (const Error&) {  // the job can't be sharded, or a change that is allowed can't be there
    }
  }

  // Where neither a choice nor a change alone would do, also with a change that needs far less of it.
  void offer_host_memory(std::vector<OffloadedPlan> offloaded, const std::shared_ptr<ModelStages>& model) {
    if (none_.remedies.empty() && offloaded.size() == 1) {
      std::optional<OffloadedPlan> less = with_less_host_memory(request_, offloaded.front().host, model);
      if (less) offloaded.push_back(*std::move(less));
    }
    for (const OffloadedPlan& each : offloaded) {
      const std::string change = each.needs.empty() ? "" : fmt::format("--allow {}", allow_text(each.needs));
      const std::string host = enough_gib_text(each.host);
      plan_.why += fmt::format("{} with {}{}{} of host memory a node (--host-memory) it would fit at {}", joint(),
                               change, change.empty() ? "" : " and ", host, format_gib(each.total));
      const std::string flag = host_memory_flag(host.substr(0, host.find(' ')));
      none_.remedies.push_back({.flags = change.empty() ? flag : change + " " + flag,
                                .note = "of each node",
                                .total = each.total,
                                .tokens_per_second = each.tokens_per_second,
                                .cards = request_.cluster.cards()});
    }
  }

  /// Of so many GiB, where the person says it: "--host-memory 64GiB", "--gpus 1xRTX4090,host=64GiB".
  std::string host_memory_flag(std::string_view gib) const {
    const std::string& cluster = request_.cluster.text;
    const std::string key = fmt::format(",{}", kHostMemoryKey);
    const std::size_t host = cluster.find(key);
    if (host == std::string::npos) return fmt::format("--host-memory {}GiB", gib);
    return fmt::format("--gpus {}{}{}GiB", cluster.substr(0, host), key, gib);
  }

  void offer_other_cluster(ElsewhereFits found) {
    plan_.search.bounds += found.counts.bounds;
    plan_.smaller_cluster = std::move(found.smaller);
    plan_.larger_cluster = std::move(found.larger);
    if (const std::optional<OtherCluster>& smaller = plan_.smaller_cluster) {
      plan_.why += fmt::format("{} just {} would do, at {} a GPU", joint(), smaller->gpus, format_gib(smaller->total));
      add_cluster(*smaller, "");
      return;
    }
    if (const std::optional<OtherCluster>& larger = plan_.larger_cluster) {
      plan_.why += fmt::format("{} {} would do, at {} a GPU", none_.remedies.empty() ? ";" : ", and", larger->gpus,
                               format_gib(larger->total));
      const std::string note = fewest_note(*larger);
      if (!note.empty()) plan_.why += fmt::format(" (of sizes that double; {})", note);
      add_cluster(*larger, note);
    } else if (none_.remedies.empty()) {
      say_that_nothing_helps();
    }
  }

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
    const std::string flags = "--allow " + allow_text(found->needs);
    return offer("with", flags, std::move(found));
  }

  // Says at what size the job would fit so, if it does.
  bool offer(const std::string& preposition, const std::string& flags, std::optional<Candidate> found) {
    if (!found) return false;
    const std::string how = preposition + " " + flags;
    const Bytes total = worst_total(found->estimate);
    found->why =
        fmt::format("{}: {:.0f} tokens/s, needs {}", how, found->tokens_per_second, needs_text(found->estimate));
    plan_.why += fmt::format("{} {} it would fit at {}", joint(), how, format_gib(total));
    none_.remedies.push_back({.flags = preposition == "with" ? flags : how,
                              .note = "",
                              .total = total,
                              .tokens_per_second = found->tokens_per_second,
                              .cards = request_.cluster.cards()});
    plan_.alternatives.push_back(*std::move(found));
    return true;
  }

  void add_cluster(const OtherCluster& other, const std::string& note) {
    none_.remedies.push_back({.flags = "--gpus " + other.gpus,
                              .note = note,
                              .total = other.total,
                              .tokens_per_second = other.tokens_per_second,
                              .cards = parse_cluster(other.gpus).cards()});
  }

  /// What was looked for in vain, so that nobody looks for it again; and what helps in any case.
  void say_that_nothing_helps() {
    if (enough_host_memory_) {
      none_.notes.push_back(fmt::format("{} of host memory a node would do", enough_gib_text(*enough_host_memory_)));
      plan_.why += "; " + none_.notes.back();
      return;
    }
    if (!request_.names_host_memory && !request_.names_other_clusters) return;  // nobody looked
    if (offer_several_changes()) return;
    std::vector<std::string> tried;
    if (request_.names_other_clusters && !request_.cluster.is_cpu()) {
      tried.push_back(fmt::format("more of these GPUs, up to {} nodes", kMostNodes));
    }
    if (request_.names_host_memory && could_offload(request_)) tried.emplace_back("host memory");
    const char* const larger = request_.cluster.is_cpu() ? "ranks" : "cards";
    none_.notes.push_back(tried.empty()
                              ? fmt::format("{} with more memory would do", larger)
                              : fmt::format("nothing that was tried would do ({}), but {} with more memory would",
                                            fmt::join(tried, "; "), larger));
    plan_.why += "; " + none_.notes.back();
  }

  // Where no change alone would do.
  bool offer_several_changes() {
    PlanRequest any = request_;
    any.allowed = parse_allowed("any");
    try {
      return offer_allowed(fastest(any, groups_to_search(any)));
    } catch (const Conflict&) {
      return false;  // the job can't have any
    } catch (const InputError&) {
      return false;  // too many combinations
    }
  }

  /// Between more than two nodes and half of them are sizes that nobody tried.
  std::string fewest_note(const OtherCluster& larger) const {
    if (!request_.decided.empty() || request_.smallest) return "";  // the objective is another than fewest-gpus
    const Cluster cluster = parse_cluster(larger.gpus);
    if (cluster.nodes <= 2) return "";
    return fmt::format("--gpus auto:{}x{} finds the fewest", cluster.cards_per_node, card_text(larger.gpus));
  }

  const char* joint() const { return none_.remedies.empty() ? ";" : ", or"; }

  const PlanRequest &request_, &asked_;
  Evaluator& evaluator_;
  Plan& plan_;
  NoPlan& none_;
  std::optional<Bytes> enough_host_memory_;  // of a node: the least known, where nothing else is lacking
};

}  // namespace

void explain_no_plan(const PlanRequest& request, const PlanRequest& asked, Evaluator& evaluator, const Job& smallest,
                     Plan& plan) {
  Explanation none(request, asked, evaluator, plan);
  none.say_what_is_missing(smallest);
  if (!request.names_remedies) return;
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
  none.offer_elsewhere(std::move(elsewhere), model);
}

void explain_elsewhere(const PlanRequest& request, const PlanRequest& asked, Evaluator& evaluator, Plan& plan) {
  Explanation none(request, asked, evaluator, plan);
  none.offer_elsewhere(search_elsewhere(request, asked, evaluator.model()), evaluator.model());
}

}  // namespace vramfit
