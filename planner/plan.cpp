// docs/planner.md describes the search; ties are broken by the order of the enumeration (planner/dimensions).
#include "planner/plan.h"

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>

#include "estimator/job_fields.h"
#include "model_specs/error.h"
#include "planner/changes.h"
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
std::string of_capacity(Bytes bytes, Bytes capacity) {
  const std::string needed = format_gib(bytes);
  return fmt::format("{} of {}", needed.substr(0, needed.find(' ')), format_gib(capacity));
}

std::string needs_text(const Estimate& estimate) { return of_capacity(worst_total(estimate), estimate.capacity); }

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
    plan_.configurations = evaluator_.estimates();
    plan_.search_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(plan_);
  }

 private:
  std::vector<Option> options_of(const Change& base) {
    PlanRequest changed = request_;
    changed.job = base.job;
    std::vector<Option> options = evaluator_.ranked(enumerate_jobs(changed));
    for (Option& option : options) {
      if (!base.needs.empty()) option.needs.push_back(base.needs);
    }
    return options;
  }

  // Fastest first over all bases; of equally fast ones the earlier base's.
  std::vector<Option> ranked(const std::vector<Change>& bases) {
    std::vector<Option> options;
    for (const Change& base : bases) std::ranges::move(options_of(base), std::back_inserter(options));
    std::ranges::stable_sort(
        options, [](const Option& a, const Option& b) { return a.tokens_per_second > b.tokens_per_second; });
    return options;
  }

  void search(const std::vector<Change>& bases) {
    options_ = ranked(bases);
    for (const Option& option : options_) {
      const Estimate& estimate = evaluator_.estimate_of(option.job);
      if (estimate.verdict == Verdict::not_modelled) {
        if (not_modelled_.empty()) not_modelled_ = estimate.why;
        continue;
      }
      capacity_ = estimate.capacity;
      smallest_ = std::min(smallest_.value_or(worst_total(estimate)), worst_total(estimate));
      if (estimate.verdict != Verdict::fits) continue;
      plan_.chosen = evaluator_.candidate(option);
      return;
    }
  }

  void explain_plan() {
    Candidate& chosen = *plan_.chosen;
    chosen.why = fmt::format("fastest of {} configurations that fits", options_.size());
    plan_.why =
        fmt::format("{} at {:.0f} tokens/s, {}", chosen.why, chosen.tokens_per_second, needs_text(chosen.estimate));
    add_faster(chosen);
    add_frontier(chosen);
    add_changes(chosen);
  }

  // Faster choices that don't fit: those nearest to the plan say most.
  void add_faster(const Candidate& chosen) {
    std::vector<const Option*> faster;
    for (const Option& option : options_) {
      if (option.job.sequence == chosen.job.sequence && option.tokens_per_second <= chosen.tokens_per_second) break;
      if (evaluator_.estimate_of(option.job).verdict != Verdict::not_modelled) faster.push_back(&option);
    }
    std::ranges::stable_sort(faster, {},
                             [&](const Option* option) { return differing_fields(option->job, chosen.job).size(); });
    std::vector<std::set<std::string_view>> shown;
    for (const Option* option : faster) {
      const auto fields = differing_fields(option->job, chosen.job);
      // An option that changes more than one already shown says nothing new.
      const bool known =
          std::ranges::any_of(shown, [&](const auto& less) { return std::ranges::includes(fields, less); });
      if (known || shown.size() == kMostAlternatives) continue;
      shown.push_back(fields);
      add_alternative(*option, fmt::format("{}: faster by {}, but needs", job_as_flags(option->job, chosen.job),
                                           percent(option->tokens_per_second, chosen.tokens_per_second)));
    }
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
    for (const Option& option : options_) {
      if (option.tokens_per_second >= chosen.tokens_per_second) continue;
      if (++spent > kFrontierEstimates || added == kMostAlternatives) return;
      const Estimate& estimate = evaluator_.estimate_of(option.job);
      const Bytes total = worst_total(estimate);
      // A step of the frontier is worth showing from a twentieth on.
      if (estimate.verdict != Verdict::fits || total.n > least.n - least.n / 20) continue;
      least = total;
      ++added;
      add_alternative(option, fmt::format("{}: slower by {}, needs", job_as_flags(option.job, chosen.job),
                                          percent(chosen.tokens_per_second, option.tokens_per_second)));
    }
  }

  // What would be faster still if more were allowed.
  void add_changes(const Candidate& chosen) {
    for (const Change& change : changes(request_, false, false)) {
      std::size_t spent = 0;
      for (const Option& option : options_of(change)) {
        if (option.tokens_per_second <= chosen.tokens_per_second || ++spent > kChangeEstimates) break;
        if (evaluator_.estimate_of(option.job).verdict != Verdict::fits) continue;
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
    if (!smallest_) throw NotModelled(not_modelled_.empty() ? "any choice for this job" : not_modelled_);
    plan_.why = fmt::format("no plan fits {}: the smallest needs {}", request_.cluster.text,
                            of_capacity(*smallest_, capacity_));
    for (const Change& change : changes(request_, false, false)) offer(change);
    for (const Change& change : changes(request_, false, true)) {
      if (offer(change)) return;  // the smallest cut is enough
    }
    if (plan_.alternatives.empty()) plan_.why += "; more or larger cards would help";
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
    const std::vector<Option> options = options_of(change);
    const auto found = std::ranges::find_if(
        options, [&](const Option& option) { return evaluator_.estimate_of(option.job).verdict == Verdict::fits; });
    if (found == options.end()) return false;
    add_alternative(*found,
                    fmt::format("with --allow {}: {:.0f} tokens/s, needs", change.needs, found->tokens_per_second));
    return true;
  }

  const PlanRequest& request_;
  Evaluator evaluator_;
  std::vector<Option> options_;  // of the last search, fastest first
  Plan plan_;
  std::optional<Bytes> smallest_;  // total of the smallest job seen
  Bytes capacity_;
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
