#include "planner/search/search.h"

#include "base/error.h"
#include "estimator/job_keys.h"
#include "estimator/time/seconds.h"
#include "estimator/time/step_timer.h"
#include "job/fields/job_fields.h"
#include "job/loss_options.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

double tokens_of(const Job& job) { return static_cast<double>(job.global_batch) * static_cast<double>(job.sequence); }

}  // namespace

const Graph& Evaluator::graph_of(const Job& job) {
  const std::pair key{loss_options(job).chunks, has_adapters(job)};
  const auto found = graphs_.find(key);
  if (found != graphs_.end()) return found->second;
  return graphs_.emplace(key, training_graph(request_.spec, job)).first->second;
}

const UnitLayout& Evaluator::layout_of(const Graph& graph, const Job& job) {
  const std::string key = units_key(graph, job);
  const auto known = layouts_.find(key);
  return known != layouts_.end() ? known->second : layouts_.emplace(key, lay_out_units(graph, job)).first->second;
}

const SharedTapes& Evaluator::tapes_of(const Graph& graph, const Job& job) {
  SharedTapes& tapes = tapes_[ops_key(graph, job)];
  if (tapes.empty()) tapes = make_shared_tapes(tape_inputs(graph, job, request_.cluster.card.device));
  return tapes;
}

BoundParts Evaluator::parts_of(const Job& job, OpenChoices open) {
  const Graph& graph = graph_of(job);
  try {
    return {.graph = &graph,
            .memory = least_.parts_of(graph, job, open),
            .seconds = least_seconds_.parts_of(graph, job, open)};
  } catch (const NotModelled&) {
    return {.graph = &graph, .memory = {}, .seconds = {}, .is_modelled = false};
  }
}

Bytes Evaluator::least_total(const BoundParts& parts, const Job& job, OpenChoices open) {
  return parts.is_modelled ? least_.total(parts.memory, *parts.graph, job, open) : Bytes{};
}

bool Evaluator::is_ruled_out(const BoundParts& parts, const Job& job, Bytes least) const {
  return parts.is_modelled && least_.is_too_much(parts.memory, *parts.graph, job, least);
}

bool Evaluator::is_ruled_out(const Job& job) {
  const BoundParts parts = parts_of(job);
  return is_ruled_out(parts, job, least_total(parts, job, {}));
}

double Evaluator::most_tokens_per_second(const BoundParts& parts, const Job& job, OpenChoices open) const {
  if (!parts.is_modelled) return std::numeric_limits<double>::infinity();
  return tokens_of(job) / LeastSeconds::step_seconds(parts.seconds, *parts.graph, job, open);
}

Option Evaluator::timed(const Job& job) {
  ++timings_;
  Option option{.job = job, .time = {}, .needs = {}, .least_total = {}};
  const Graph& graph = graph_of(job);
  const Cluster& cluster = request_.cluster;
  try {
    require_rules(job, cluster);
    if (job.runtime != Runtime::vramfit) {
      option.time = step_time(graph, job, cluster, efficiency_);
    } else {
      const program::Program program = program::make_program({.graph = graph,
                                                              .job = job,
                                                              .device = cluster.card.device,
                                                              .coords = {},
                                                              .run = {.clip = request_.clip},
                                                              .layout = &layout_of(graph, job),
                                                              .tapes = &tapes_of(graph, job),
                                                              .labels = false});
      option.time = seconds_of(program, cluster, efficiency_);
      option.least_total = folded_peaks(program, Bytes{1}).requested + least_.outside(graph, job);
    }
  } catch (const NotModelled&) {
    return option;
  }
  if (option.time.step_seconds > 0) option.tokens_per_second = tokens_of(job) / option.time.step_seconds;
  return option;
}

Trial Evaluator::try_out(const Job& job) {
  try {
    require_rules(job, request_.cluster);
    const RankEstimate rank =
        estimate_rank(graph_of(job), job, request_.cluster, {.run = {.clip = request_.clip}}, /*retries=*/false);
    return {.fits = verdict_of(rank, request_.cluster) == Verdict::fits, .total = rank.total};
  } catch (const NotModelled&) {
    return {.is_modelled = false, .total = {}};
  }
}

Attempt Evaluator::attempt(const Job& job, Bytes below) {
  ++estimates_made_;
  Attempt attempt;
  try {
    require_rules(job, request_.cluster);
    attempt.rank = estimate_rank_below(graph_of(job), job, request_.cluster, {.run = {.clip = request_.clip}}, below);
    attempt.fits = attempt.rank && verdict_of(*attempt.rank, request_.cluster) == Verdict::fits;
  } catch (const NotModelled&) {
    attempt.is_modelled = false;
  }
  return attempt;
}

const Trial& Evaluator::trial_of(const Job& job) {
  const std::string key = job_as_flags(job, unresolved_job());
  const auto found = trials_.find(key);
  if (found != trials_.end()) return found->second;
  ++estimates_made_;
  return trials_.emplace(key, try_out(job)).first->second;
}

const Estimate& Evaluator::estimate_of(const Job& job) {
  const std::string key = job_as_flags(job, unresolved_job());
  const auto found = estimates_.find(key);
  if (found != estimates_.end()) return found->second;
  ++estimates_made_;
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

Candidate Evaluator::candidate(const Option& option, const RankEstimate& rank) const {
  Estimate estimate;
  estimate.model_name = request_.spec.name;
  estimate.job = option.job;
  estimate.cluster = request_.cluster;
  estimate.ranks = {rank};
  estimate.capacity = request_.cluster.card.memory;
  estimate.verdict = Verdict::fits;
  return {.job = option.job,
          .estimate = std::move(estimate),
          .time = option.time,
          .tokens_per_second = option.tokens_per_second,
          .needs = option.needs,
          .why = ""};
}

Bytes worst_total(const Estimate& estimate) {
  return estimate.ranks.empty() ? Bytes{} : estimate.ranks.at(static_cast<std::size_t>(estimate.worst)).total;
}

}  // namespace vramfit
