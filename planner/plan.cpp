// docs/planner.md describes the search; ties are broken by the order of the enumeration (planner/dimensions);
// of equal needs under PyTorch's runtimes, by the smaller bound.
#include "planner/plan.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <span>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "estimator/changes/void_choices.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "planner/answer/faster_changes.h"
#include "planner/answer/larger_batch.h"
#include "planner/answer/larger_cluster.h"
#include "planner/answer/no_plan.h"
#include "planner/answer/not_considered.h"
#include "planner/answer/plan_words.h"
#include "planner/answer/waterfall.h"
#include "planner/search/best_first.h"
#include "planner/search/changes.h"
#include "planner/search/search.h"
#include "planner/search/smallest_need.h"
#include "program/not_modelled.h"
#include "program/stages/optimizer_in_backward.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostFaster = 5;      // of what doesn't fit, shown
constexpr std::int64_t kFrontierStep = 20;  // each point of the frontier needs a twentieth less than the one before

// Which fields tell two jobs apart; accumulation follows from the micro-batch and the mesh from the sharding.
std::set<std::string_view> differing_fields(const Job& a, const Job& b) {
  std::set<std::string_view> fields;
  for (const JobField& field : job_fields()) {
    if (field.name == "grad_accum" || field.name == "mesh") continue;
    if (field.get(a) != field.get(b)) fields.insert(field.name);
  }
  return fields;
}

class Search {
 public:
  /// `asked`: with defaults still open.
  Search(const PlanRequest& request, const PlanRequest& asked)
      : request_(request), asked_(asked), evaluator_(request), smallest_(request, evaluator_) {}

  Plan run() {
    const auto begin = std::chrono::steady_clock::now();
    groups_ = groups_to_search(request_);
    for (; group_ < groups_.size(); ++group_) {
      search(groups_[group_]);
      if (plan_.chosen) break;
    }
    if (plan_.chosen) {
      explain_plan();
    } else {
      smallest_.find(groups_, plan_.search);
      explain_failure();
    }
    plan_.not_considered = not_considered(request_, plan_);
    plan_.search.times = evaluator_.timings();
    plan_.search.estimates = evaluator_.estimates();
    plan_.search.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(plan_);
  }

 private:
  void search(const std::vector<Change>& bases) {
    bases_ = bases;
    request_.smallest ? take_smallest() : take_fastest();
  }

  void take_fastest() {
    faster_.clear();
    queue_.emplace(evaluator_, request_, bases_, BestBy::speed, plan_.search);
    queue_->pass_over_misfits();
    while (const std::optional<Option> option = queue_->next(kNoLimit)) {
      if (is_rejected(request_, option->job)) continue;
      const Attempt attempt = evaluator_.attempt_to_be_fastest(*option);
      smallest_.note(attempt, option->job);
      if (attempt.fits) {
        plan_.chosen = evaluator_.candidate(*option);
        requested_ = requested_by(*attempt.rank);
        misfits_ = queue_->misfits();
        queue_->bring_back_misfits(*option);
        return;
      }
      queue_->retry_last(attempt);
      faster_.push_back(*option);
    }
  }

  void take_smallest() {
    BestFirst queue(evaluator_, request_, bases_, BestBy::need, plan_.search);
    std::optional<Option> smallest;
    Bytes most = request_.cluster.card.memory;
    while (const std::optional<Option> option = queue.next(most)) {
      const Attempt attempt = evaluator_.attempt(*option, most + Bytes{1});
      smallest_.note(attempt, option->job);
      queue.retry_last(attempt);
      if (!attempt.fits) continue;
      smallest = option;
      most = attempt.rank->total - Bytes{1};
    }
    if (smallest) plan_.chosen = evaluator_.candidate(timed(*smallest));
  }

  void explain_plan() {
    Candidate& chosen = *plan_.chosen;
    chosen.why = fmt::format("the {} that fits, of {} configurations{}", request_.smallest ? "smallest" : "fastest",
                             plan_.search.configurations,
                             chosen.needs.empty() ? "" : " with --allow " + allow_text(chosen.needs));
    plan_.why =
        fmt::format("{} at {:.0f} tokens/s, {}", chosen.why, chosen.tokens_per_second, needs_text(chosen.estimate));
    for (std::string& each :
         void_choices(request_.spec, chosen.job, request_.fixed, request_.cluster, {.clip = request_.clip})) {
      chosen.estimate.assumptions.push_back(std::move(each));
    }
    std::ranges::move(void_allowed(request_), std::back_inserter(chosen.estimate.assumptions));
    plan_.steps = waterfall(request_, chosen.job, evaluator_);
    if (!request_.smallest) {
      plan_.larger = larger_batch(request_, asked_, last_resorts_of(bases_.front()), chosen, evaluator_);
      if (request_.names_other_clusters && chosen.needs.empty()) {
        plan_.smaller_cluster = smaller_cluster(asked_, chosen.tokens_per_second, plan_.search, evaluator_.model());
      }
    }
    if (request_.smallest) {
      add_fastest_and_frontier();
    } else {
      add_faster(chosen);
      add_frontier(worst_total(chosen.estimate), requested_);
      add_faster_changes(request_, std::span(groups_).subspan(group_), evaluator_, plan_);
    }
  }

  // What a plan with the most headroom gives up: the fastest job that fits, and what lies between.
  void add_fastest_and_frontier() {
    SearchCounts counts;  // the configurations have been counted
    const Candidate& chosen = *plan_.chosen;
    queue_.emplace(evaluator_, request_, bases_, BestBy::speed, counts);
    while (const std::optional<Option> option = queue_->next(kNoLimit, chosen.tokens_per_second)) {
      const Attempt attempt = evaluator_.attempt(*option, request_.cluster.card.memory + Bytes{1});
      if (!attempt.fits) continue;
      add_trade(evaluator_.candidate(*option, *attempt.rank));
      add_frontier(attempt.rank->total, requested_by(*attempt.rank), chosen.tokens_per_second);
      break;
    }
    plan_.search.bounds += counts.bounds;
    queue_.reset();  // it refers to the counts
  }

  // Faster choices that don't fit: those nearest to the plan say most. They are among those that were tried, and among
  // the plan's neighbours, of which the bound of memory may have ruled out any.
  void add_faster(const Candidate& chosen) {
    std::vector<FasterOption> others;
    const auto add = [&](const Option& option, From from) {
      others.push_back({differing_fields(option.job, chosen.job), option, from});
    };
    for (const Option& option : faster_) add(option, From::tried);
    for (const Option& option : misfits_) {
      if (!is_rejected(request_, option.job)) add(option, From::misfits);
    }
    for (const Option& option : queue_->passed_over()) {
      if (!is_rejected(request_, option.job)) add(option, From::passed_over);
    }
    for (const Job& job : Space(request_, chosen.job).neighbours(chosen.job)) {
      add({.job = job, .time = {}, .needs = chosen.needs, .least_total = {}, .program = {}}, From::neighbours);
    }
    std::ranges::stable_sort(others, {}, [](const FasterOption& other) { return other.fields.size(); });
    Shown shown;
    for (auto begin = others.begin(); begin != others.end() && shown.size() < kMostFaster;) {
      const std::size_t size = begin->fields.size();
      const auto end =
          std::find_if(begin, others.end(), [&](const FasterOption& o) { return o.fields.size() != size; });
      time_and_sort({begin, end}, shown);
      show_faster({begin, end}, chosen, shown);
      begin = end;
    }
  }

  // Of a search only what was tried has its time; misfits have a bound of it.
  enum class From { tried, misfits, passed_over, neighbours };
  struct FasterOption {
    std::set<std::string_view> fields;  // in which it differs from the plan
    Option option;
    From from = From::tried;
  };
  using Shown = std::vector<std::set<std::string_view>>;

  // An option that changes more than one already shown says nothing new.
  static bool says_less(const FasterOption& other, const Shown& shown) {
    return std::ranges::any_of(shown, [&](const auto& less) { return std::ranges::includes(other.fields, less); });
  }

  // In the order of a search, the plan's neighbours last; those that say nothing new need no time.
  void time_and_sort(std::span<FasterOption> others, const Shown& shown) {
    for (FasterOption& other : others) {
      if (other.from == From::passed_over && !says_less(other, shown)) other.option = timed(other.option);
    }
    std::ranges::stable_sort(others, comes_first);
  }

  static bool comes_first(const FasterOption& a, const FasterOption& b) {
    const bool a_is_last = a.from == From::neighbours, b_is_last = b.from == From::neighbours;
    if (a_is_last || b_is_last) return !a_is_last && b_is_last;
    const double a_speed = a.option.tokens_per_second, b_speed = b.option.tokens_per_second;
    return a_speed != b_speed ? a_speed > b_speed : a.option.place < b.option.place;
  }

  // Gives the first one, a misfit, its time instead of the bound, and its place among the others. One whose requests
  // are too much has no time.
  void time_first(std::span<FasterOption> others) {
    FasterOption& first = others.front();
    const Option option = evaluator_.timed_if_wanted(first.option.job, evaluator_.parts_of(first.option.job),
                                                     first.option.least_total, kNoLimit);
    first.option.time = option.time;
    first.option.tokens_per_second = option.tokens_per_second;
    first.option.program = option.program;
    first.from = From::tried;
    const auto place = std::upper_bound(others.begin() + 1, others.end(), first, comes_first);
    std::rotate(others.begin(), others.begin() + 1, place);
  }

  void show_faster(std::span<FasterOption> others, const Candidate& chosen, Shown& shown) {
    for (std::size_t o = 0; o < others.size(); ++o) {
      const FasterOption& other = others[o];
      while (other.from == From::misfits && !says_less(other, shown)) time_first(others.subspan(o));
      if (says_less(other, shown) || (other.from == From::tried && other.option.tokens_per_second == 0)) continue;
      const std::optional<Option> faster = timed_if_faster(other.option, chosen);
      if (!faster) continue;
      const Attempt attempt = evaluator_.attempt(*faster, kNoLimit);
      if (!attempt.rank || attempt.fits) continue;
      shown.push_back(other.fields);
      add_misfit(*faster, *attempt.rank);
      if (shown.size() == kMostFaster) return;
    }
  }

  // The same job of the same search, with its time.
  Option timed(const Option& option) {
    Option timed = evaluator_.timed(option.job);
    timed.needs = option.needs;
    timed.place = option.place;
    return timed;
  }

  std::optional<Option> timed_if_faster(const Option& option, const Candidate& chosen) {
    const bool has_time = option.tokens_per_second > 0;
    if (!has_time && evaluator_.most_tokens_per_second(option.job) <= chosen.tokens_per_second) return std::nullopt;
    const Option known = has_time ? option : timed(option);
    return known.tokens_per_second > chosen.tokens_per_second ? std::optional(known) : std::nullopt;
  }

  // A faster choice than the plan, and what stands against it.
  void add_misfit(const Option& option, const RankEstimate& rank) {
    const Candidate& chosen = *plan_.chosen;
    const Bytes capacity = request_.cluster.card.memory;
    Candidate candidate = evaluator_.candidate(option, rank);
    candidate.why = fmt::format("{}: faster by {}, but ", job_as_flags(option.job, chosen.job),
                                percent(option.tokens_per_second, chosen.tokens_per_second));
    if (rank.total > capacity) {
      candidate.why += fmt::format("out of memory by {} in {}: needs {}", format_gib(rank.total - capacity),
                                   evaluator_.peak_place_of(option), needs_text(candidate.estimate));
      if (is_for_arena(option.job, rank)) {
        candidate.why += fmt::format(", {} of it fragments, which --allocator arena avoids",
                                     format_gib(rank.total - requested_by(rank)));
      }
    } else if (exceeds_host_memory(request_.cluster.cards_per_node * rank.host, request_.cluster)) {
      candidate.why += "needs " + host_shortage_text(request_.cluster.cards_per_node * rank.host, request_.cluster);
    } else {
      candidate.why += "needs " + shortage_text(rank, request_.cluster);
    }
    plan_.alternatives.push_back(std::move(candidate));
  }

  // The arena has next to no fragments, but to compute it for a job takes longer than a whole search, so it isn't
  // tried.
  bool is_for_arena(const Job& job, const RankEstimate& rank) const {
    return !request_.is_fixed("allocator") && job.runtime == Runtime::vramfit &&
           requested_by(rank) <= request_.cluster.card.memory;
  }

  // What of a rank's total its program requests; the rest are fragments.
  static Bytes requested_by(const RankEstimate& rank) { return rank.peak_requested + rank.breakdown.outside_allocator; }

  // Choices that are slower than one that needs `total`, and faster than `above`: each is the fastest that requests a
  // twentieth less than the one before, if it also needs less and fits.
  void add_frontier(Bytes total, Bytes requested, double above = -1) {
    const auto below = [](Bytes bytes) { return bytes - Bytes{bytes.n / kFrontierStep}; };
    Bytes most = below(requested);
    while (const std::optional<Option> option = queue_->next(most, above)) {
      const Attempt attempt = evaluator_.attempt(*option, total);
      if (!attempt.rank) {  // all that requests as much would have as many fragments
        if (option->job.runtime == Runtime::vramfit) most = option->least_total - Bytes{1};
        continue;
      }
      const Bytes asked = requested_by(*attempt.rank);
      if (asked > most) continue;  // of another runtime, whose requests are bounded less closely
      most = below(asked);
      if (!attempt.fits) continue;
      total = attempt.rank->total;
      add_trade(evaluator_.candidate(*option, *attempt.rank));
    }
  }

  // An alternative that trades the plan's memory for speed, or the other way round.
  void add_trade(Candidate candidate) {
    const Candidate& chosen = *plan_.chosen;
    const bool is_faster = candidate.tokens_per_second > chosen.tokens_per_second;
    const double fast = is_faster ? candidate.tokens_per_second : chosen.tokens_per_second;
    const double slow = is_faster ? chosen.tokens_per_second : candidate.tokens_per_second;
    candidate.why = fmt::format("{}: {} by {}, needs {}", job_as_flags(candidate.job, chosen.job),
                                is_faster ? "faster" : "slower", percent(fast, slow), needs_text(candidate.estimate));
    plan_.alternatives.push_back(std::move(candidate));
  }

  void explain_failure() {
    if (!smallest_.job()) refuse_all();
    explain_no_plan(request_, asked_, evaluator_, *smallest_.job(), plan_);
    for (std::string& each : void_allowed(request_)) {
      plan_.why += "; " + each;
      plan_.none->notes.push_back(std::move(each));
    }
  }

  // Why no choice is modelled: what stands against the job that was asked for, or else against the first choice.
  [[noreturn]] void refuse_all() {
    try {
      require_rules(request_.job, request_.cluster);
      require_optimizer_in_backward(request_.job, request_.clip);
    } catch (const Excluded&) {
      throw;
    } catch (const NotModelled&) {
      // its estimate says the same, and what would answer
    }
    const Estimate& asked = evaluator_.estimate_of(request_.job);
    if (asked.verdict == Verdict::not_modelled) throw NotModelled(asked.why);
    const std::optional<Job>& other = smallest_.without_rules();
    throw NotModelled(other ? evaluator_.estimate_of(*other).why : "any choice for this job");
  }

  const PlanRequest& request_;
  const PlanRequest& asked_;
  Evaluator evaluator_;
  std::vector<std::vector<Change>> groups_;
  std::size_t group_ = 0;  // the last one searched
  // Of the last search, over all bases:
  std::vector<Change> bases_;
  std::optional<BestFirst> queue_;
  Bytes requested_;              // by the plan, and outside the allocator
  std::vector<Option> misfits_;  // passed over before there was a plan
  std::vector<Option> faster_;   // those that were tried and don't fit
  Plan plan_;
  SmallestNeed smallest_;
};

}  // namespace

PlanRequest PlanRequest::on(const Cluster& other) const {
  PlanRequest there = *this;
  there.cluster = other;
  if (!job_on) return there;
  SetJob set = job_on(other);
  there.job = std::move(set.job);
  there.fixed = std::move(set.fixed);
  return there;
}

namespace {

// Defaults are decided once, so that a change starts from the job as it would have been.
PlanRequest with_defaults(const PlanRequest& request) {
  PlanRequest resolved = request;
  std::vector<std::string> notes;
  resolved.job = resolve_job(request.job, request.spec, request.cluster, notes);
  return resolved;
}

}  // namespace

Plan make_plan(const PlanRequest& request) { return Search(with_defaults(request), request).run(); }

void look_elsewhere(const PlanRequest& request, Plan& plan) {
  const PlanRequest resolved = with_defaults(request);
  Evaluator evaluator(resolved);
  explain_elsewhere(resolved, request, evaluator, plan);
  plan.not_considered = not_considered(resolved, plan);
}

}  // namespace vramfit
