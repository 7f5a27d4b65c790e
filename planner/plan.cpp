// docs/planner.md describes the search; ties are broken by the order of the enumeration (planner/dimensions).
#include "planner/plan.h"

#include <algorithm>
#include <chrono>

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

std::string difference(const Job& job, const Job& base) { return job_as_flags(job, base); }

// How many flags tell two jobs apart; micro-batch and accumulation are one choice.
std::int64_t distance(const Job& a, const Job& b) {
  std::int64_t fields = 0;
  for (const JobField& field : job_fields()) {
    if (field.name == "grad_accum" || field.name == "mesh") continue;
    fields += field.get(a) == field.get(b) ? 0 : 1;
  }
  return fields;
}

std::string percent(double a, double b) { return fmt::format("{:.0f} %", 100 * (a / b - 1)); }

std::string needs_text(const Estimate& estimate) {
  return fmt::format("{} of {}", format_gib(worst_total(estimate)), format_gib(estimate.capacity));
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
      if (smallest_.needs.empty() || worst_total(estimate) < smallest_bytes_) note_smallest(option, estimate);
      if (estimate.verdict != Verdict::fits) continue;
      plan_.chosen = evaluator_.candidate(option);
      return;
    }
  }

  void note_smallest(const Option& option, const Estimate& estimate) {
    smallest_.job = option.job;
    smallest_.needs = option.needs.empty() ? "as asked" : option.needs.front();
    smallest_bytes_ = worst_total(estimate);
    capacity_ = estimate.capacity;
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
    std::ranges::stable_sort(faster, {}, [&](const Option* option) { return distance(option->job, chosen.job); });
    if (faster.size() > kMostAlternatives) faster.resize(kMostAlternatives);
    for (const Option* option : faster) {
      Candidate candidate = evaluator_.candidate(*option);
      candidate.why =
          fmt::format("{}: faster by {}, but needs {}", difference(candidate.job, chosen.job),
                      percent(candidate.tokens_per_second, chosen.tokens_per_second), needs_text(candidate.estimate));
      plan_.alternatives.push_back(std::move(candidate));
    }
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
      Candidate candidate = evaluator_.candidate(option);
      candidate.why = fmt::format("{}: slower by {}, needs {}", difference(candidate.job, chosen.job),
                                  percent(chosen.tokens_per_second, candidate.tokens_per_second), needs_text(estimate));
      least = total;
      ++added;
      plan_.alternatives.push_back(std::move(candidate));
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
    if (smallest_.needs.empty()) throw NotModelled(not_modelled_.empty() ? "any choice for this job" : not_modelled_);
    plan_.why = fmt::format("no plan fits {}: the smallest needs {}", request_.cluster.text,
                            fmt::format("{} of {}", format_gib(smallest_bytes_), format_gib(capacity_)));
    for (const bool last_resort : {false, true}) {
      for (const Change& change : changes(request_, false, last_resort)) {
        if (!add_help(change)) continue;
        const Candidate& helpful = plan_.alternatives.back();
        plan_.why += fmt::format("{} with --allow {} it would fit at {}", plan_.alternatives.size() == 1 ? ";" : ", or",
                                 change.needs, format_gib(worst_total(helpful.estimate)));
        if (last_resort) return;  // the smallest cut is enough
      }
    }
    if (plan_.alternatives.empty()) plan_.why += "; more or larger cards would help";
  }

  // The fastest job under a change that fits, if there is one.
  bool add_help(const Change& change) {
    for (const Option& option : options_of(change)) {
      if (evaluator_.estimate_of(option.job).verdict != Verdict::fits) continue;
      Candidate candidate = evaluator_.candidate(option);
      candidate.why = fmt::format("with --allow {}: fits at {}, {:.0f} tokens/s", change.needs,
                                  format_gib(worst_total(candidate.estimate)), candidate.tokens_per_second);
      plan_.alternatives.push_back(std::move(candidate));
      return true;
    }
    return false;
  }

  const PlanRequest& request_;
  Evaluator evaluator_;
  std::vector<Option> options_;  // of the last search, fastest first
  Plan plan_;
  Change smallest_;
  Bytes smallest_bytes_, capacity_;
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
