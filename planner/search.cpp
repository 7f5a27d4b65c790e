#include "planner/search.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "estimator/job_fields.h"
#include "estimator/rank_estimate.h"
#include "model_specs/error.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit {
namespace {

bool decided_by_person(const Dimension& dimension, const std::vector<std::string>& fixed) {
  return std::ranges::any_of(dimension.fields,
                             [&](std::string_view field) { return std::ranges::find(fixed, field) != fixed.end(); });
}

// Resolves a combination, or says that it contradicts itself (a reshard policy with no-shard).
bool resolves(Job& job, const PlanRequest& request) {
  std::vector<std::string> notes;
  try {
    job = resolve_job(job, request.spec, request.cluster, notes);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Every choice of a dimension for every job, kMostOptions at most.
std::vector<Job> choices_along(const Dimension& dimension, const std::vector<Job>& jobs, const SearchSpace& space) {
  std::vector<Job> next;
  for (const Job& job : jobs) {
    std::ranges::copy(dimension.choices(job, space), std::back_inserter(next));
    if (next.size() > kMostOptions) next.resize(kMostOptions);
  }
  return next;
}

}  // namespace

std::vector<Job> enumerate_jobs(const PlanRequest& request) {
  std::vector<std::string> notes;
  const SearchSpace space{request.spec, request.cluster};
  std::vector<Job> jobs{resolve_job(request.job, request.spec, request.cluster, notes)};
  for (const Dimension& dimension : dimensions()) {
    if (decided_by_person(dimension, request.fixed)) continue;
    std::vector<Job> next = choices_along(dimension, jobs, space);
    if (!next.empty()) jobs = std::move(next);
  }
  std::vector<Job> distinct;
  std::set<std::string> seen;
  for (Job& job : jobs) {
    if (resolves(job, request) && seen.insert(job_as_flags(job, unresolved_job())).second) distinct.push_back(job);
  }
  return distinct;
}

const Graph& Evaluator::graph_of(const Job& job) {
  const LossOptions loss = loss_options(job);
  const auto found = graphs_.find(loss.chunks);
  if (found != graphs_.end()) return found->second;
  return graphs_.emplace(loss.chunks, build_graph(request_.spec, loss)).first->second;
}

std::vector<Option> Evaluator::ranked(const std::vector<Job>& jobs) {
  std::vector<Option> options;
  for (const Job& job : jobs) {
    Option option{.job = job,
                  .time = step_time(graph_of(job), job, request_.cluster),
                  .tokens_per_second = 0,
                  .order = static_cast<std::int64_t>(options.size()),
                  .needs = {}};
    const double tokens = static_cast<double>(job.global_batch) * static_cast<double>(job.sequence);
    if (option.time.step_seconds > 0) option.tokens_per_second = tokens / option.time.step_seconds;
    options.push_back(std::move(option));
  }
  std::ranges::stable_sort(options,
                           [](const Option& a, const Option& b) { return a.tokens_per_second > b.tokens_per_second; });
  return options;
}

const Estimate& Evaluator::estimate_of(const Job& job) {
  const std::string key = job_as_flags(job, unresolved_job());
  const auto found = estimates_.find(key);
  if (found != estimates_.end()) return found->second;
  const EstimateOptions options{.suggestions = false, .clip = request_.clip};
  return estimates_.emplace(key, estimate(request_.spec, job, request_.cluster, options)).first->second;
}

Candidate Evaluator::candidate(const Option& option) {
  return {.job = option.job,
          .estimate = estimate_of(option.job),
          .time = option.time,
          .tokens_per_second = option.tokens_per_second,
          .needs = option.needs,
          .why = ""};
}

Bytes worst_total(const Estimate& estimate) {
  return estimate.ranks.empty() ? Bytes{} : estimate.ranks.at(static_cast<std::size_t>(estimate.worst)).total;
}

}  // namespace vramfit
