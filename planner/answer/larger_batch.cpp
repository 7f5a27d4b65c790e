#include "planner/answer/larger_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "job/resolve_job.h"
#include "planner/search/best_first.h"
#include "planner/search/changes.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMostTimes = 16;
/// Of what the largest batch gains.
constexpr double kNearlyAll = 0.9;
constexpr double kEndless = std::numeric_limits<double>::infinity();

/// Two of micro-batch, accumulation and global batch determine the third.
bool is_open(const PlanRequest& request) {
  return !request.is_fixed("global_batch") && !(request.is_fixed("micro_batch") && request.is_fixed("grad_accum"));
}

LargerBatch described(const Option& option) {
  return {.global_batch = option.job.global_batch,
          .micro_batch = option.job.micro_batch,
          .accumulation = option.job.accumulation,
          .tokens_per_second = option.tokens_per_second};
}

/// What a plan for that batch answers, with other choices too. What needs fewer last resorts has no plan for a smaller
/// batch, and so none for this one.
LargerBatch as_planned(const LargerBatch& found, const PlanRequest& asked, const std::vector<std::string>& last_resorts,
                       Evaluator& evaluator) {
  PlanRequest request = asked;
  request.job.global_batch = found.global_batch;
  request.fixed.emplace_back("global_batch");
  try {
    std::vector<std::string> notes;
    request.job = resolve_job(request.job, request.spec, request.cluster, notes);
    for (const std::vector<Change>& bases : groups_to_search(request)) {
      if (last_resorts_of(bases.front()) != last_resorts) continue;
      SearchCounts counts;  // these are no choices of the plan
      BestFirst queue(evaluator, request, bases, BestBy::speed, counts);
      queue.pass_over_misfits();
      while (const std::optional<Option> option = queue.next(kNoLimit, found.tokens_per_second)) {
        if (is_rejected(request, option->job)) continue;
        const Attempt attempt = evaluator.attempt_to_fit(*option);
        if (attempt.fits) return described(*option);
        queue.retry_last(attempt);
      }
    }
  } catch (const Error&) {
    return found;  // what else is allowed contradicts a batch that is set
  }
  return found;
}

class Larger {
 public:
  Larger(const PlanRequest& request, const Job& chosen, Evaluator& evaluator)
      : request_(request), chosen_(chosen), evaluator_(evaluator) {}

  std::optional<LargerBatch> found(double tokens_per_second) {
    std::int64_t most = kMostTimes;
    std::optional<Option> largest = fastest(most);
    while (!largest && most > 2) largest = fastest(most /= 2);
    if (!largest || largest->tokens_per_second < (1 + kLeastGain) * tokens_per_second) return std::nullopt;
    const double enough = tokens_per_second + kNearlyAll * (largest->tokens_per_second - tokens_per_second);
    for (std::int64_t times = 2; times < most; times *= 2) {
      const std::int64_t micro_batch = std::min(largest->job.micro_batch, times * chosen_.micro_batch);
      const std::optional<Option> smaller = with_micro_batch(times, micro_batch, enough);
      if (smaller) return described(*smaller);
    }
    return described(*largest);
  }

 private:
  /// With micro-batches of the plan's size, and twice as large ones while they are faster and fit.
  std::optional<Option> fastest(std::int64_t times) {
    if (request_.is_fixed("grad_accum")) return with_micro_batch(times, times * chosen_.micro_batch);
    std::optional<Option> best = with_micro_batch(times, chosen_.micro_batch);
    if (request_.is_fixed("micro_batch")) return best;
    for (std::int64_t size = 2; size <= times; size *= 2) {
      const double faster = best ? std::nextafter(best->tokens_per_second, kEndless) : 0;
      const std::optional<Option> larger = with_micro_batch(times, size * chosen_.micro_batch, faster);
      if (!larger) break;
      best = larger;
    }
    return best;
  }

  /// None if it doesn't fit, has no rules, or gives less than `enough` tokens a second.
  std::optional<Option> with_micro_batch(std::int64_t times, std::int64_t micro_batch, double enough = 0) {
    if (chosen_.global_batch > std::numeric_limits<std::int64_t>::max() / kMostTimes) return std::nullopt;
    Job job = chosen_;
    job.global_batch = times * chosen_.global_batch;
    job.micro_batch = micro_batch;
    const std::int64_t rows = job.global_batch / data_ranks(job);
    if (rows % micro_batch != 0) return std::nullopt;
    job.accumulation = rows / micro_batch;
    if (request_.is_fixed("grad_accum") && job.accumulation != chosen_.accumulation) return std::nullopt;
    if (is_ruled_out(job) || evaluator_.most_tokens_per_second(job) < enough) return std::nullopt;
    if (evaluator_.walks_too_far(job)) return std::nullopt;
    Option option = evaluator_.timed(job);
    const bool is_fast = option.tokens_per_second > 0 && option.tokens_per_second >= enough;
    if (!is_fast || !evaluator_.attempt_to_fit(option).fits) return std::nullopt;
    return option;
  }

  bool is_ruled_out(const Job& job) const {
    if (job.runtime == Runtime::vramfit) return evaluator_.is_ruled_out(job);
    return evaluator_.is_too_much(job, evaluator_.least_memory(job).reserved);
  }

  const PlanRequest& request_;
  const Job& chosen_;
  Evaluator& evaluator_;
};

}  // namespace

std::optional<LargerBatch> larger_batch(const PlanRequest& request, const PlanRequest& asked,
                                        const std::vector<std::string>& last_resorts, const Candidate& chosen,
                                        Evaluator& evaluator) {
  if (!is_open(request)) return std::nullopt;
  const std::optional<LargerBatch> found = Larger(request, chosen.job, evaluator).found(chosen.tokens_per_second);
  // PyTorch's runtimes have few other choices, and walks of a larger batch take long.
  if (!found || chosen.job.runtime != Runtime::vramfit) return found;
  return as_planned(*found, asked, last_resorts, evaluator);
}

}  // namespace vramfit
