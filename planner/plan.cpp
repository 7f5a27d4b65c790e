// docs/planner.md describes the search; ties are broken by the order of the enumeration (planner/dimensions).
#include "planner/plan.h"

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>

#include "base/digits_apart.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "planner/changes.h"
#include "planner/ranking.h"
#include "planner/search.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostAlternatives = 5;    // of each sort
constexpr std::size_t kFrontierEstimates = 48;  // estimates spent on what is slower but smaller
constexpr std::size_t kChangeEstimates = 64;    // and on each change that isn't allowed

// Which fields tell two jobs apart; accumulation follows from the micro-batch and the mesh from the sharding.
std::set<std::string_view> differing_fields(const Job& a, const Job& b) {
  std::set<std::string_view> fields;
  for (const JobField& field : job_fields()) {
    if (field.name == "grad_accum" || field.name == "mesh") continue;
    if (field.get(a) != field.get(b)) fields.insert(field.name);
  }
  return fields;
}

std::string percent(double a, double b) {
  const double share = 100 * (a / b - 1);
  return fmt::format("{:.{}f} %", share, share < 9.95 ? 1 : 0);
}

// "34.30 of 23.52 GiB"
std::string of_capacity(Bytes bytes, Bytes capacity, int digits) {
  const std::string needed = format_gib(bytes, digits);
  return fmt::format("{} of {}", needed.substr(0, needed.find(' ')), format_gib(capacity, digits));
}

// Why a job that needs `total` doesn't count as fitting: "34.30 of 23.52 GiB", or what else stands against it.
std::string shortage_text(const RankEstimate& rank, Bytes capacity) {
  int digits = digits_apart(rank.total, capacity);
  if (rank.upper_bound > capacity) digits = digits_apart(capacity, rank.upper_bound, digits);
  const std::string needs = of_capacity(rank.total, capacity, digits);
  if (rank.total > capacity) return needs;
  if (rank.upper_bound > capacity)
    return fmt::format("{}, but up to {} (its upper bound)", needs, format_gib(rank.upper_bound, digits));
  if (rank.reserved_grows) return needs + ", but reserved memory grows with every step";
  return needs + ", but only if the allocator releases cached memory and tries again";
}

std::string needs_text(const Estimate& estimate) {
  const Bytes total = worst_total(estimate);
  return of_capacity(total, estimate.capacity, digits_apart(total, estimate.capacity));
}

class Search {
 public:
  explicit Search(const PlanRequest& request) : request_(request), evaluator_(request) {}

  Plan run() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Change> bases{{"", request_.job}};
    std::ranges::move(changes(request_, true, false), std::back_inserter(bases));
    search(bases);
    for (const Change& change : changes(request_, true, true)) {
      if (!plan_.chosen) search({change});
    }
    if (plan_.chosen) {
      explain_plan();
    } else {
      explain_failure();
    }
    if (plan_.search.cut)
      plan_.why += fmt::format("; the search was cut at {} configurations", request_.most_configurations);
    plan_.search.estimates = evaluator_.estimates();
    plan_.search.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(plan_);
  }

 private:
  // The configurations of a change: those that may fit, and those that the lower bound rules out.
  struct Options {
    std::vector<Option> possible, ruled_out;  // not timed
    bool cut = false;
  };

  Options options_of(const Change& base) {
    PlanRequest changed = request_;
    changed.job = base.job;
    Space space = enumerate_jobs(changed);
    Options options;
    options.cut = space.cut;
    for (Job& job : space.jobs) {
      if (!evaluator_.has_rules(job)) continue;
      std::vector<Option>& list = evaluator_.is_ruled_out(job) ? options.ruled_out : options.possible;
      list.push_back({.job = std::move(job), .time = {}, .needs = {}});
    }
    for (std::vector<Option>* list : {&options.possible, &options.ruled_out}) {
      for (Option& option : *list) {
        if (!base.needs.empty()) option.needs.push_back(base.needs);
      }
    }
    return options;
  }

  void collect(const std::vector<Change>& bases) {
    std::vector<Option> possible;
    ruled_out_.clear();
    for (const Change& base : bases) {
      Options more = options_of(base);
      std::ranges::move(more.possible, std::back_inserter(possible));
      std::ranges::move(more.ruled_out, std::back_inserter(ruled_out_));
      plan_.search.cut |= more.cut;
    }
    possible_ = Ranking(evaluator_, std::move(possible));
    plan_.search.ruled_out += static_cast<std::int64_t>(ruled_out_.size());
    plan_.search.configurations += static_cast<std::int64_t>(possible_.size() + ruled_out_.size());
  }

  void search(const std::vector<Change>& bases) {
    collect(bases);
    for (std::size_t i = 0; i < possible_.size(); ++i) {
      const Option& option = possible_.at(i);
      note_smallest(option.job);
      if (!evaluator_.trial_of(option.job).fits) continue;
      plan_.chosen = evaluator_.candidate(option);
      return;
    }
    find_smallest();
  }

  void note_smallest(const Job& job) {
    const Trial& trial = evaluator_.trial_of(job);
    if (!trial.is_modelled) {
      if (not_modelled_.empty()) not_modelled_ = evaluator_.estimate_of(job).why;
      return;
    }
    if (!smallest_ || trial.total < evaluator_.trial_of(*smallest_).total) smallest_ = job;
  }

  // The smallest need of all: those whose bound is lowest are estimated until no bound is below what was found.
  void find_smallest() {
    std::vector<std::pair<Bytes, const Job*>> least;
    for (const Option& option : ruled_out_) {
      least.emplace_back(evaluator_.least_total(option.job), &option.job);
    }
    std::ranges::stable_sort(least, {}, &std::pair<Bytes, const Job*>::first);
    for (const auto& [bound, job] : least) {
      if (smallest_ && bound >= evaluator_.trial_of(*smallest_).total) return;
      note_smallest(*job);
    }
  }

  void explain_plan() {
    Candidate& chosen = *plan_.chosen;
    chosen.why = fmt::format("fastest of {} configurations that fits", plan_.search.configurations);
    plan_.why =
        fmt::format("{} at {:.0f} tokens/s, {}", chosen.why, chosen.tokens_per_second, needs_text(chosen.estimate));
    if (const std::string note = network_note(request_.cluster); !note.empty()) {
      chosen.estimate.assumptions.push_back(note);
    }
    add_faster(chosen);
    add_frontier(chosen);
    add_changes(chosen);
  }

  // Faster choices that don't fit: those nearest to the plan say most. Of what the bound rules out only the nearest are
  // timed.
  void add_faster(const Candidate& chosen) {
    std::vector<std::pair<std::set<std::string_view>, const Option*>> others;
    for (std::size_t i = 0; i < possible_.size(); ++i) {
      const Option& option = possible_.at(i);
      if (option.job.sequence == chosen.job.sequence && option.tokens_per_second <= chosen.tokens_per_second) break;
      others.emplace_back(differing_fields(option.job, chosen.job), &option);
    }
    for (const Option& option : ruled_out_) {
      others.emplace_back(differing_fields(option.job, chosen.job), &option);
    }
    std::ranges::stable_sort(others, {}, [](const auto& other) { return other.first.size(); });
    std::vector<std::set<std::string_view>> shown;
    for (const auto& [fields, option] : others) {
      // An option that changes more than one already shown says nothing new.
      const auto says_less = [&other = fields](const auto& less) { return std::ranges::includes(other, less); };
      if (std::ranges::any_of(shown, says_less)) continue;
      const Option timed = with_time(*option);
      if (timed.tokens_per_second <= chosen.tokens_per_second) continue;
      if (!evaluator_.trial_of(timed.job).is_modelled) continue;
      shown.push_back(fields);
      add_alternative(timed, fmt::format("{}: faster by {}, but needs", job_as_flags(timed.job, chosen.job),
                                         percent(timed.tokens_per_second, chosen.tokens_per_second)));
      if (shown.size() == kMostAlternatives) return;
    }
  }

  Option with_time(const Option& option) {
    if (option.tokens_per_second > 0) return option;
    Option timed = evaluator_.timed(option.job);
    timed.needs = option.needs;
    return timed;
  }

  // `why` is completed by what the option needs.
  void add_alternative(const Option& option, const std::string& why) {
    Candidate candidate = evaluator_.candidate(option);
    candidate.why = fmt::format("{} {}", why, needs_text(candidate.estimate));
    plan_.alternatives.push_back(std::move(candidate));
  }

  // Slower choices, each of which needs less than all before it.
  void add_frontier(const Candidate& chosen) {
    Bytes least = worst_total(chosen.estimate);
    std::size_t spent = 0, added = 0;
    for (std::size_t i = 0; i < possible_.size(); ++i) {
      const Option& option = possible_.at(i);
      if (option.tokens_per_second >= chosen.tokens_per_second) continue;
      if (++spent > kFrontierEstimates || added == kMostAlternatives) return;
      const Trial& trial = evaluator_.trial_of(option.job);
      // A step of the frontier is worth showing from a twentieth on.
      if (!trial.fits || trial.total.n > least.n - least.n / 20) continue;
      least = trial.total;
      ++added;
      add_alternative(option, fmt::format("{}: slower by {}, needs", job_as_flags(option.job, chosen.job),
                                          percent(chosen.tokens_per_second, option.tokens_per_second)));
    }
  }

  // What would be faster still if more were allowed.
  void add_changes(const Candidate& chosen) {
    for (const Change& change : changes(request_, false, false)) {
      std::size_t spent = 0;
      Ranking options(evaluator_, options_of(change).possible);
      for (std::size_t i = 0; i < options.size(); ++i) {
        const Option& option = options.at(i);
        if (option.tokens_per_second <= chosen.tokens_per_second || ++spent > kChangeEstimates) break;
        if (!evaluator_.trial_of(option.job).fits) continue;
        Candidate candidate = evaluator_.candidate(option);
        candidate.why =
            fmt::format("with --allow {}: faster by {}, needs {}", change.needs,
                        percent(candidate.tokens_per_second, chosen.tokens_per_second), needs_text(candidate.estimate));
        plan_.alternatives.push_back(std::move(candidate));
        break;
      }
    }
  }

  void explain_failure() {
    if (!smallest_) throw NotModelled(reason_of_none());
    const Estimate& estimate = evaluator_.estimate_of(*smallest_);
    plan_.why =
        fmt::format("no plan fits {}: the smallest needs {}", request_.cluster.text,
                    shortage_text(estimate.ranks.at(static_cast<std::size_t>(estimate.worst)), estimate.capacity));
    for (const Change& change : changes(request_, false, false)) offer(change);
    for (const Change& change : changes(request_, false, true)) {
      if (offer(change)) return;  // the smallest cut is enough
    }
    if (plan_.alternatives.empty()) plan_.why += "; more or larger cards would help";
  }

  // Why no choice is modelled: what stands against the job that was asked for, or else against the first choice.
  std::string reason_of_none() {
    const Estimate& asked = evaluator_.estimate_of(request_.job);
    if (asked.verdict == Verdict::not_modelled) return asked.why;
    return not_modelled_.empty() ? "any choice for this job" : not_modelled_;
  }

  // Says at what size a change would make the job fit, if it does.
  bool offer(const Change& change) {
    if (!add_help(change)) return false;
    plan_.why += fmt::format("{} with --allow {} it would fit at {}", plan_.alternatives.size() == 1 ? ";" : ", or",
                             change.needs, format_gib(worst_total(plan_.alternatives.back().estimate)));
    return true;
  }

  // The fastest job under a change that fits, if there is one.
  bool add_help(const Change& change) {
    Ranking options(evaluator_, options_of(change).possible);
    for (std::size_t i = 0; i < options.size(); ++i) {
      const Option& option = options.at(i);
      if (!evaluator_.trial_of(option.job).fits) continue;
      add_alternative(option,
                      fmt::format("with --allow {}: {:.0f} tokens/s, needs", change.needs, option.tokens_per_second));
      return true;
    }
    return false;
  }

  const PlanRequest& request_;
  Evaluator evaluator_;
  // Of the last search, over all bases; of equally fast options the earlier base's come first.
  Ranking possible_;
  std::vector<Option> ruled_out_;
  Plan plan_;
  std::optional<Job> smallest_;  // of the jobs seen, the one with the smallest total
  std::string not_modelled_;
};

}  // namespace

Plan make_plan(const PlanRequest& request) {
  // Defaults are decided once, so that a change starts from the job as it would have been.
  PlanRequest resolved = request;
  std::vector<std::string> notes;
  resolved.job = resolve_job(request.job, request.spec, request.cluster, notes);
  return Search(resolved).run();
}

}  // namespace vramfit
