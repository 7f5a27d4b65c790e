#include "estimator/step_timer.h"

#include <algorithm>

#include "estimator/job_keys.h"
#include "program/lowering/work.h"
#include "program/make_program.h"

namespace vramfit {

namespace {

program::Program program_of(const Graph& graph, const Job& job, const Cluster& cluster) {
  return program::make_program({.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .clip = true});
}

void set_times(program::Program& program, std::int64_t accumulation) {
  using Kind = program::Section::Kind;
  const auto middle = std::ranges::find(program.sections, Kind::middle, &program::Section::kind);
  if (middle != program.sections.end()) middle->times = accumulation - 2;
}

}  // namespace

std::string StepTimer::program_key(const Graph& graph, const Job& job) {
  Job one_row = job;
  one_row.micro_batch = one_row.sequence = 1;
  return units_key(graph, job) + "; " + schedule_key(job) + "; " + ops_key(graph, one_row);
}

StepTime StepTimer::time(const Graph& graph, const Job& job) {
  if (job.runtime != Runtime::vramfit) return step_time(graph, job, cluster_);  // no tapes: its work is its own
  const std::string key = program_key(graph, job), ops = ops_key(graph, job);
  if (key_ != key) {
    key_.clear();  // should lowering throw
    program_ = program_of(graph, job, cluster_);
    key_ = key;
  } else if (ops_ != ops) {
    Tapes& tapes = tapes_[ops];
    if (tapes.empty()) tapes = make_shared_tapes(tape_inputs(graph, job, cluster_.card.device));
    set_work(program_, tapes);
  }
  ops_ = ops;
  set_times(program_, job.accumulation);
  return seconds_of(program_, cluster_);
}

StepTime step_time(const Graph& graph, const Job& job, const Cluster& cluster) {
  return seconds_of(program_of(graph, job, cluster), cluster);
}

}  // namespace vramfit
