#include "planner/search/search.h"

#include <algorithm>

#include "base/error.h"
#include "estimator/allocator/requests.h"
#include "estimator/host_memory.h"
#include "estimator/time/least_zero_step.h"
#include "estimator/time/seconds.h"
#include "job/allocator/allocator_settings.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/peak_place.h"
#include "program/readers/peaks.h"

namespace vramfit {
namespace {

/// An option that was timed is most often tried soon after that. A program may take megabytes.
constexpr std::size_t kMostPrograms = 16;

double tokens_of(const Job& job) { return static_cast<double>(tokens_of_step(job)); }

}  // namespace

Evaluator::SharedProgram Evaluator::program_of(const Graph& graph, const Option& option) {
  SharedProgram program = option.program.lock();
  if (!program && option.job.runtime != Runtime::vramfit) program = kept_program_of(option.job);
  return program ? program : lowered(graph, option.job);
}

Evaluator::SharedProgram Evaluator::kept_program_of(const Job& job) {
  const std::string key = without_allocator(job);
  for (KeptProgram& kept : programs_) {
    if (kept.key.empty()) kept.key = without_allocator(kept.job);
    if (kept.key == key) return kept.program;
  }
  return nullptr;
}

Evaluator::SharedProgram Evaluator::requests_for(const Graph& graph, const Job& job) {
  std::string key = without_allocator(job);
  if (!requests_ || requests_->key != key) {
    program::LowerInputs inputs = inputs_of(graph, job);
    inputs.calls = false;
    requests_ = KeptProgram{.job = job,
                            .key = std::move(key),
                            .program = std::make_shared<const program::Program>(program::make_program(inputs))};
  }
  return requests_->program;
}

Evaluator::SharedProgram Evaluator::requests_for(const Graph& graph, const Option& option) {
  SharedProgram whole = option.program.lock();
  return whole ? whole : requests_for(graph, option.job);
}

Bytes Evaluator::least_total_of(const program::Program& program, const Graph& graph, const Job& job) const {
  return folded_peaks(program, Bytes{1}).requested + least_.outside(graph, job);
}

program::LowerInputs Evaluator::inputs_of(const Graph& graph, const Job& job) {
  const bool has_stages = job.runtime == Runtime::vramfit;  // others are walked
  return {.graph = graph,
          .job = job,
          .device = request_.cluster.card.device,
          .coords = {},
          .run = {.clip = request_.clip},
          .layout = has_stages ? &model_->stages()->layout_of(graph, job) : nullptr,
          .tapes = has_stages ? &model_->stages()->tapes_of(graph, job) : nullptr,
          .labels = false};
}

Evaluator::SharedProgram Evaluator::lowered(const Graph& graph, const Job& job, std::optional<Bytes> reserves_below) {
  program::LowerInputs inputs = inputs_of(graph, job);
  inputs.reserves_below = reserves_below;
  auto made = std::make_shared<const program::Program>(program::make_program(inputs));
  programs_.push_back({.job = job, .key = "", .program = std::move(made)});
  if (programs_.size() > kMostPrograms) programs_.pop_front();
  return programs_.back().program;
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

bool Evaluator::is_ruled_out(const BoundParts& parts, const Job& job, OpenChoices open, Bytes least) const {
  return parts.is_modelled && least_.is_too_much(parts.memory, *parts.graph, job, open, least);
}

bool Evaluator::is_ruled_out(const Job& job) {
  const BoundParts parts = parts_of(job);
  return is_ruled_out(parts, job, {}, least_total(parts, job, {}));
}

double Evaluator::most_tokens_per_second(const BoundParts& parts, const Job& job, OpenChoices open) const {
  if (!parts.is_modelled) return std::numeric_limits<double>::infinity();
  return tokens_of(job) / least_seconds_.step_seconds(parts.seconds, *parts.graph, job, open);
}

double Evaluator::most_tokens_per_second(const Job& job) {
  if (job.runtime == Runtime::vramfit) return most_tokens_per_second(parts_of(job), job, {});
  const Graph& graph = graph_of(job);
  const std::optional<LeastOfWalk> least = least_walked_.of(graph, job);
  const LeastZeroStep zero = least_zero_step(graph, job, request_.cluster, efficiency_);
  const double seconds =
      std::max((least ? least->compute_seconds : 0) + zero.kernels, zero.collectives) + zero.after_backward;
  return seconds > 0 ? tokens_of(job) / seconds : std::numeric_limits<double>::infinity();
}

bool Evaluator::lacks_host_memory(const Job& job) {
  if (job.runtime == Runtime::vramfit || job.offload.empty()) return false;
  const Bytes of_rank = LeastWalked::in_host_memory(graph_of(job), job);
  return exceeds_host_memory(request_.cluster.cards_per_node * of_rank, request_.cluster);
}

bool Evaluator::is_too_much(const Job& job, Bytes reserved) {
  return exceeds_card(reserved, outside(job), job, request_.cluster);
}

bool Evaluator::reserves_too_much(const Option& option, Bytes below) {
  return option.reserved && *option.reserved + outside(option.job) >= below;
}

void Evaluator::add_requests(Option& option, const Graph& graph) {
  const Job& job = option.job;
  require_rules(job, request_.cluster);
  if (job.runtime != Runtime::vramfit) {
    const Walked& whole = walked(job);
    option.time = whole.time;
    option.requested = whole.requested;
    option.reserved = whole.reserved;
    option.program = whole.program;
  } else {
    const SharedProgram program = lowered(graph, job);
    option.least_total = least_total_of(*program, graph, job);
    option.program = program;
  }
}

void Evaluator::add_time(Option& option, const Graph& graph) {
  ++timings_;
  const Job& job = option.job;
  if (job.runtime == Runtime::vramfit) {
    option.time = seconds_of(*option.program.lock(), request_.cluster, efficiency_, least_.outside(graph, job));
  }
  if (option.time.step_seconds > 0) option.tokens_per_second = tokens_of(job) / option.time.step_seconds;
}

Option Evaluator::timed(const Job& job) {
  Option option{.job = job, .time = {}, .needs = {}, .least_total = {}, .program = {}};
  const Graph& graph = graph_of(job);
  try {
    add_requests(option, graph);
    add_time(option, graph);
  } catch (const NotModelled&) {  // has no time
  }
  return option;
}

Option Evaluator::requested(const Job& job) {
  Option option{.job = job, .time = {}, .needs = {}, .least_total = {}, .program = {}};
  const Graph& graph = graph_of(job);
  try {
    if (job.runtime == Runtime::vramfit) {
      require_rules(job, request_.cluster);
      option.least_total = least_total_of(*requests_for(graph, job), graph, job);
    } else {
      add_requests(option, graph);
      add_time(option, graph);
    }
  } catch (const NotModelled&) {  // its attempt will say so
  }
  return option;
}

Option Evaluator::timed_if_wanted(const Job& job, const BoundParts& parts, Bytes least, Bytes most) {
  Option option{.job = job, .time = {}, .needs = {}, .least_total = {}, .program = {}};
  const Graph& graph = graph_of(job);
  try {
    add_requests(option, graph);
    const Bytes needed = std::max(least, option.least_total);
    if (needed > most || is_ruled_out(parts, job, {}, needed)) return option;
    add_time(option, graph);
  } catch (const NotModelled&) {  // has no time
  }
  return option;
}

Trial Evaluator::try_out(const Job& job) {
  try {
    require_rules(job, request_.cluster);
    const Graph& graph = graph_of(job);
    const SharedProgram program = lowered(graph, job);
    RankEstimate rank =
        estimate_program(*program, graph, job, request_.cluster, {.run = {.clip = request_.clip}}, /*retries=*/false);
    add_host_loading(rank, request_.spec, graph, job, *program);
    return {.fits = verdict_of(rank, request_.cluster) == Verdict::fits, .total = rank.total};
  } catch (const NotModelled&) {
    return {.is_modelled = false, .total = {}};
  }
}

Attempt Evaluator::attempt(const Option& option, Bytes below) {
  ++estimates_made_;
  Attempt attempt;
  const Job& job = option.job;
  try {
    require_rules(job, request_.cluster);
    const Graph& graph = graph_of(job);
    if (!reserves_too_much(option, below)) {
      if (!has_first_step(job, below) || !reserves_in_first_step(*requests_for(graph, option), job, below)) {
        const SharedProgram program = program_of(graph, option);
        attempt.rank =
            estimate_program_below(*program, graph, job, request_.cluster, {{.run = {.clip = request_.clip}}, below});
        if (attempt.rank) add_host_loading(*attempt.rank, request_.spec, graph, job, *program);
      }
    }
    attempt.fits = attempt.rank && verdict_of(*attempt.rank, request_.cluster) == Verdict::fits;
    if (attempt.fits) return attempt;
    attempt.requests_fit =
        option.reserved ? !is_too_much(job, *option.reserved) : option.least_total <= request_.cluster.card.memory;
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
  const SharedProgram made_before = kept_program_of(job);
  const EstimateOptions options{
      .suggestions = false, .run = {.clip = request_.clip}, .speed_with = &efficiency_, .program = made_before.get()};
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
  estimate.verdict = verdict_of(rank, request_.cluster);
  return {.job = option.job,
          .estimate = std::move(estimate),
          .time = option.time,
          .tokens_per_second = option.tokens_per_second,
          .needs = option.needs,
          .why = ""};
}

std::string Evaluator::peak_place_of(const Option& option) {
  return peak_place_text(*program_of(graph_of(option.job), option));
}

Bytes worst_total(const Estimate& estimate) { return estimate.ranks.empty() ? Bytes{} : worst_rank(estimate).total; }

bool is_rejected(const PlanRequest& request, const Job& job) {
  return std::ranges::any_of(request.rejected, [&](const RejectedJob& rejected) {
    return job_as_flags(job, unresolved_job()) == job_as_flags(rejected.job, unresolved_job());
  });
}

}  // namespace vramfit
