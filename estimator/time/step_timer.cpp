#include "estimator/time/step_timer.h"

#include <algorithm>

#include "estimator/least/job_keys.h"
#include "estimator/rank_estimate.h"
#include "program/lowering/work.h"
#include "program/make_program.h"

namespace vramfit {

namespace {

RunEffects effects_of(const Job& job) { return {.clip = !job.optimizer_in_backward}; }

void set_times(program::Program& program, std::int64_t accumulation) {
  using Kind = program::Section::Kind;
  const auto middle = std::ranges::find(program.sections, Kind::middle, &program::Section::kind);
  if (middle != program.sections.end()) middle->times = accumulation - 2;
}

}  // namespace

StepTime StepTimer::time(const Graph& graph, const Job& job) {
  if (job.runtime != Runtime::vramfit) return step_time(graph, job, cluster_);  // no tapes: its work is its own
  const std::string key = program_key(graph, job), ops = ops_key(graph, job);
  if (key_ != key) {
    key_.clear();  // should lowering throw
    program_ = program::lower({.graph = graph,
                               .job = job,
                               .device = cluster_.card.device,
                               .coords = {},
                               .run = effects_of(job),
                               .layout = &stages_.layout_of(graph, job),
                               .tapes = &stages_.tapes_of(graph, job),
                               .labels = false});
    key_ = key;
  } else if (ops_ != ops) {
    set_work(program_, stages_.tapes_of(graph, job));
  }
  ops_ = ops;
  set_times(program_, job.accumulation);
  return seconds_of(program_, cluster_, efficiency_of(cluster_), outside_allocator(graph, job, cluster_));
}

StepTime step_time(const Graph& graph, const Job& job, const Cluster& cluster) {
  return step_time(graph, job, cluster, efficiency_of(cluster));
}

StepTime step_time(const Graph& graph, const Job& job, const Cluster& cluster, const Efficiency& efficiency) {
  const Device& device = cluster.card.device;
  return seconds_of(
      program::make_program(
          {.graph = graph, .job = job, .device = device, .coords = {}, .run = effects_of(job), .labels = false}),
      cluster, efficiency, outside_allocator(graph, job, cluster));
}

}  // namespace vramfit
