#include "planner/search.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/loss_options.h"
#include "job/resolve_job.h"
#include "planner/dimensions/dimensions.h"
#include "program/not_modelled.h"

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

/// Every choice of a dimension for every job, `most` at most.
std::vector<Job> choices_along(const Dimension& dimension, const std::vector<Job>& jobs, const SearchSpace& space,
                               std::size_t most, bool& cut) {
  std::vector<Job> next;
  for (const Job& job : jobs) {
    std::ranges::move(dimension.choices(job, space), std::back_inserter(next));
    if (next.size() <= most) continue;
    cut = true;
    next.resize(most);
    break;
  }
  return next;
}

double tokens_of(const Job& job) { return static_cast<double>(job.global_batch) * static_cast<double>(job.sequence); }

}  // namespace

Space enumerate_jobs(const PlanRequest& request) {
  std::vector<std::string> notes;
  const SearchSpace space{request.spec, request.cluster};
  Space found;
  found.jobs = {resolve_job(request.job, request.spec, request.cluster, notes)};
  for (const Dimension& dimension : dimensions()) {
    if (decided_by_person(dimension, request.fixed)) continue;
    std::vector<Job> next = choices_along(dimension, found.jobs, space, request.most_configurations, found.cut);
    if (!next.empty()) found.jobs = std::move(next);
  }
  std::erase_if(found.jobs, [&](Job& job) { return !resolves(job, request); });
  return found;
}

const Graph& Evaluator::graph_of(const Job& job) {
  const LossOptions loss = loss_options(job);
  const auto found = graphs_.find(loss.chunks);
  if (found != graphs_.end()) return found->second;
  return graphs_.emplace(loss.chunks, build_graph(request_.spec, loss)).first->second;
}

bool Evaluator::has_rules(const Job& job) const {
  try {
    require_rules(job, request_.cluster);
    return true;
  } catch (const NotModelled&) {
    return false;
  }
}

bool Evaluator::is_ruled_out(const Job& job) {
  try {
    return least_.is_too_much(graph_of(job), job);
  } catch (const NotModelled&) {
    return false;
  }
}

Option Evaluator::timed(const Job& job) {
  ++timings_;
  Option option{.job = job, .time = {}, .needs = {}};
  try {
    require_rules(job, request_.cluster);
    option.time = timer_.time(graph_of(job), job);
  } catch (const NotModelled&) {
    return option;
  }
  if (option.time.step_seconds > 0) option.tokens_per_second = tokens_of(job) / option.time.step_seconds;
  return option;
}

double Evaluator::most_tokens_per_second(const Job& job) {
  try {
    return tokens_of(job) / least_seconds_.step_seconds(graph_of(job), job);
  } catch (const NotModelled&) {
    return std::numeric_limits<double>::infinity();
  }
}

Trial Evaluator::try_out(const Job& job) {
  try {
    require_rules(job, request_.cluster);
    const RankEstimate rank =
        estimate_rank(graph_of(job), job, request_.cluster, {.run = {.clip = request_.clip}}, /*retries=*/false);
    return {.fits = verdict_of(rank, request_.cluster.card.memory) == Verdict::fits, .total = rank.total};
  } catch (const NotModelled&) {
    return {.is_modelled = false, .total = {}};
  }
}

const Trial& Evaluator::trial_of(const Job& job) {
  const std::string key = job_as_flags(job, unresolved_job());
  const auto found = trials_.find(key);
  return found != trials_.end() ? found->second : trials_.emplace(key, try_out(job)).first->second;
}

const Estimate& Evaluator::estimate_of(const Job& job) {
  const std::string key = job_as_flags(job, unresolved_job());
  const auto found = estimates_.find(key);
  if (found != estimates_.end()) return found->second;
  const EstimateOptions options{.suggestions = false, .run = {.clip = request_.clip}};
  const Estimate& made = estimates_.emplace(key, estimate(request_.spec, job, request_.cluster, options)).first->second;
  trials_.insert_or_assign(key, Trial{.is_modelled = made.verdict != Verdict::not_modelled,
                                      .fits = made.verdict == Verdict::fits,
                                      .total = worst_total(made)});
  return made;
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
