// What the engine's jobs ask for tells of most that don't fit that they don't, before anything else of them is known.
#include <algorithm>

#include "estimator/allocator/requests.h"
#include "job/allocator/allocator_settings.h"
#include "planner/search/search.h"
#include "program/lowering/beginning.h"
#include "program/not_modelled.h"

namespace vramfit {
namespace {

/// Where jobs fail by fragments before the update, most do so in the first few backward passes: of one in so many
/// segments, and of the head and one more.
constexpr std::size_t kSegmentsOfAPass = 8, kPassesBesides = 2;
constexpr int kMostMisfitsToWait = 16;

}  // namespace

Bytes Evaluator::least_misfit(const Job& job) {
  const Cluster& cluster = request_.cluster;
  Bytes fits, misfit = cluster.card.memory + Bytes{1};
  if (cluster.is_cpu() || cluster.confidence.is_asked()) return misfit;
  const Bytes outside = this->outside(job);
  while (fits + Bytes{1} < misfit) {
    const Bytes middle = fits + Bytes{(misfit - fits).n / 2};
    const bool fails = middle > outside && exceeds_card(middle - outside, outside, job, cluster);
    (fails ? misfit : fits) = middle;
  }
  return misfit;
}

bool Evaluator::has_first_step(const Job& job, Bytes below) {
  if (job.runtime != Runtime::vramfit || request_.cluster.is_cpu() || is_arena(job.allocator)) return false;
  return below < kNoLimit && below > outside(job);
}

bool Evaluator::reserves_in_first_step(const program::Program& of, const Job& job, Bytes below) {
  if (!has_requests(of) || std::ranges::any_of(of.sections, program::is_save)) return false;
  last_failed_ = first_steps_.reserve(requests_of(of, 1), job.allocator, below - outside(job));
  if (last_failed_ && misfits_to_wait_ > 0) --misfits_to_wait_;
  return last_failed_;
}

bool Evaluator::reserves_in_beginning(const Graph& graph, const Job& job, Bytes below) {
  if (misfits_to_wait_ > 0) return false;
  program::LowerInputs inputs = inputs_of(graph, job);
  inputs.calls = false;
  const program::Program beginning =
      program::lower_beginning(inputs, graph.segments.size() / kSegmentsOfAPass + kPassesBesides);
  if (has_requests(beginning) && first_steps_.reserve(requests_of(beginning, 1), job.allocator, below - outside(job))) {
    next_wait_ = 1;
    return true;
  }
  misfits_to_wait_ = next_wait_;
  next_wait_ = std::min(2 * next_wait_, kMostMisfitsToWait);
  return false;
}

EarlyLook Evaluator::look_early(const Job& job, Bytes below) {
  EarlyLook look;
  if (!expects_misfits() || !has_first_step(job, below)) return look;
  const Graph& graph = graph_of(job);
  try {
    require_rules(job, request_.cluster);
    look.is_too_much = reserves_in_beginning(graph, job, below);
    if (!look.is_too_much && last_failed_) {
      const SharedProgram requests = requests_for(graph, job);
      look.least_total = least_total_of(*requests, graph, job);
      look.is_too_much = look.least_total >= below || reserves_in_first_step(*requests, job, below);
    }
  } catch (const NotModelled&) {  // its estimate will say so
  }
  if (look.is_too_much) ++estimates_made_;
  return look;
}

}  // namespace vramfit
