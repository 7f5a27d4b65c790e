// Enumerates the space of same-result choices, rules out by a lower bound of memory what cannot fit, orders the rest by
// predicted time, and estimates only as far as it must.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "estimator/job_keys.h"
#include "estimator/least_memory.h"
#include "estimator/time/least_seconds.h"
#include "estimator/time/step_timer.h"
#include "planner/plan.h"

namespace vramfit {

/// A job of the space with its predicted time.
struct Option {
  Job job;
  StepTime time;
  double tokens_per_second = 0;
  std::vector<std::string> needs;
};

/// Every combination of the dimensions that `fixed` leaves open, as complete jobs; combinations that contradict each
/// other are left out.
struct Space {
  std::vector<Job> jobs;
  bool cut = false;  // there are more than the request's most_configurations
};

/// Throws InputError when the job itself is contradictory.
Space enumerate_jobs(const PlanRequest& request);

/// What a search asks of a job: less than an estimate, which takes longer.
struct Trial {
  bool is_modelled = true;
  bool fits = false;  // whether the estimate's verdict is `fits`
  Bytes total;        // of the estimate's worst rank
};

/// Bounds, times, trials and estimates of jobs of one model on one cluster; each job is tried and estimated once.
class Evaluator {
 public:
  explicit Evaluator(const PlanRequest& request)
      : request_(request), least_(request.cluster), least_seconds_(request.cluster), timer_(request.cluster) {}

  /// Whether the runtime honours all that the job asks for.
  bool has_rules(const Job& job) const;
  /// Of a job that has rules: whether the lower bound alone excludes the verdict `fits`. A job that isn't modelled is
  /// left to its estimate.
  bool is_ruled_out(const Job& job);
  /// At most the total of the job's estimate.
  Bytes least_total(const Job& job) { return least_.total(graph_of(job), job); }
  /// The job with its time; one that isn't modelled has none, which puts it behind all others.
  Option timed(const Job& job);
  /// At least the tokens_per_second of the job's timed(); infinite for jobs without a bound.
  double most_tokens_per_second(const Job& job);
  /// Jobs with equal keys are timed fastest one after the other.
  std::string program_key(const Job& job) { return vramfit::program_key(graph_of(job), job); }
  /// Counted and replayed as for the estimate, but not at the card's capacity: how far retries help is for the reader
  /// of an estimate.
  const Trial& trial_of(const Job& job);
  const Estimate& estimate_of(const Job& job);
  Candidate candidate(const Option& option);
  /// Times that were asked for.
  std::int64_t timings() const { return timings_; }
  /// Jobs that were tried or estimated.
  std::int64_t estimates() const { return static_cast<std::int64_t>(trials_.size()); }

 private:
  Trial try_out(const Job& job);
  const Graph& graph_of(const Job& job);

  const PlanRequest& request_;
  std::map<std::int64_t, Graph> graphs_;  // by loss chunks
  LeastMemory least_;
  LeastSeconds least_seconds_;
  StepTimer timer_;
  std::int64_t timings_ = 0;
  std::map<std::string, Trial> trials_;  // by the job's flags
  std::map<std::string, Estimate> estimates_;
};

/// Total bytes of the worst rank; estimates without ranks have none.
Bytes worst_total(const Estimate& estimate);

}  // namespace vramfit
