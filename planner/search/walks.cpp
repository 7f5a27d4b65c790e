// What a search finds out by walking through steps of PyTorch's runtimes: of the whole job, or until it is too much.
#include <algorithm>

#include "base/error.h"
#include "estimator/time/seconds.h"
#include "job/allocator/allocator_settings.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "planner/search/search.h"
#include "program/not_modelled.h"
#include "program/readers/least_reserved.h"
#include "program/readers/peaks.h"

namespace vramfit {

std::string Evaluator::without_allocator(Job job) {
  if (!puts_gradients_first(job.allocator)) job.allocator = unresolved_job().allocator;
  return job_as_flags(job, unresolved_job());
}

const Evaluator::Walked& Evaluator::walked(const Job& job) { return *walked_below(job, kNoLimit); }

const Evaluator::Walked* Evaluator::walked_below(const Job& job, Bytes below) {
  const std::string key = without_allocator(job);
  if (const auto known = walked_.find(key); known != walked_.end()) {
    return known->second.reserved < below ? &known->second : nullptr;
  }
  if (is_given_up(key, below)) return nullptr;
  SharedProgram program;
  try {
    program = lowered(graph_of(job), job, below == kNoLimit ? std::nullopt : std::optional(below));
  } catch (const program::ReservesTooMuch&) {
    given_up_[key] = below;
    return nullptr;
  }
  const Walked& walked =
      walked_
          .emplace(key, Walked{.time = seconds_of(*program, request_.cluster, efficiency_, outside(job)),
                               .requested = folded_peaks(*program, Bytes{1}).requested,
                               .reserved = least_reserved(*program),
                               .program = program})
          .first->second;
  // Sections that were not walked again, but follow in the program, may take more than what was.
  return walked.reserved < below ? &walked : nullptr;
}

bool Evaluator::is_given_up(const std::string& key, Bytes below) const {
  const auto known = given_up_.find(key);
  return known != given_up_.end() && known->second >= below;
}

bool Evaluator::walks_too_far_alone(const Job& job) {
  if (job.runtime == Runtime::vramfit || job.runtime == Runtime::deepspeed || job.accumulation == 1) return false;
  const std::optional<Job> alone = least_walked_.with_rows(job, job.micro_batch);
  if (!alone) return false;
  const Bytes below = least_misfit(job) - outside(job);
  if (is_given_up(without_allocator(*alone), below)) return true;
  try {
    return least_walked_.walks_all_blocks(graph_of(job), job) && walked_below(*alone, below) == nullptr;
  } catch (const NotModelled&) {
    return false;  // its attempt will say so
  }
}

bool Evaluator::walks_beyond(const Job& job, Bytes below) {
  if (job.runtime == Runtime::vramfit || below == kNoLimit) return false;
  try {
    require_rules(job, request_.cluster);
    return walked_below(job, std::max(below - outside(job), Bytes{})) == nullptr;
  } catch (const NotModelled&) {  // its attempt will say so
    return false;
  }
}

LeastOfWalk Evaluator::least_memory(const Job& job) {
  if (job.runtime == Runtime::vramfit) return {};
  const auto found = walked_.find(without_allocator(job));
  if (found != walked_.end()) return {.requested = found->second.requested, .reserved = found->second.reserved};
  return least_walked_.of(graph_of(job), job).value_or(LeastOfWalk{});
}

LeastOfWalk Evaluator::least_memory_at_any_batch(const Job& job) {
  if (job.runtime == Runtime::vramfit) return {};
  return least_walked_.at_any_batch(graph_of(job), job).value_or(LeastOfWalk{});
}

LeastOfWalk Evaluator::least_memory_at_twice_the_rows(const Job& job, std::int64_t rows) {
  if (job.runtime == Runtime::vramfit) return {};
  return least_walked_.at_twice_the_rows(graph_of(job), job, rows).value_or(LeastOfWalk{});
}

LeastOfWalk Evaluator::least_memory_of_one_row(const Job& job) {
  const Job least = least_walked_.with_one_row(job);
  const bool is_itself = least.micro_batch * least.accumulation == job.micro_batch * job.accumulation;
  if (job.runtime != Runtime::deepspeed || job.sharding != "full-shard" || is_itself) return {};
  try {
    require_rules(least, request_.cluster);
    const Bytes limit = least_misfit(job) - outside(job);
    const Walked* const whole = walked_below(least, limit);
    return whole == nullptr ? LeastOfWalk{.requested = limit, .reserved = limit}
                            : LeastOfWalk{.requested = whole->requested, .reserved = whole->reserved};
  } catch (const Error&) {  // one row may be too few
    return {};
  }
}

}  // namespace vramfit
