// Enumerates the space of same-result choices, orders it by predicted time, and estimates only as far as it must.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace vramfit {

/// A job of the search space with its predicted time; `order` is its position in the enumeration, which breaks ties.
struct Option {
  Job job;
  StepTime time;
  double tokens_per_second = 0;
  std::int64_t order = 0;
  std::vector<std::string> needs;
};

/// Every combination of the dimensions that `fixed` leaves open, as complete jobs; combinations that contradict each
/// other are left out. At most kMostOptions; throws InputError when the job itself is contradictory.
std::vector<Job> enumerate_jobs(const PlanRequest& request);
inline constexpr std::size_t kMostOptions = 20000;

/// Estimates, each job once.
class Evaluator {
 public:
  explicit Evaluator(const PlanRequest& request) : request_(request) {}

  /// The jobs with their times, fastest first.
  std::vector<Option> ranked(const std::vector<Job>& jobs);
  const Estimate& estimate_of(const Job& job);
  Candidate candidate(const Option& option);
  std::int64_t estimates() const { return static_cast<std::int64_t>(estimates_.size()); }

 private:
  const Graph& graph_of(const Job& job);

  const PlanRequest& request_;
  std::map<std::string, Estimate> estimates_;  // by the job's flags
  std::map<std::int64_t, Graph> graphs_;       // by loss chunks
};

/// Total bytes of the worst rank; estimates without ranks have none.
Bytes worst_total(const Estimate& estimate);

}  // namespace vramfit
