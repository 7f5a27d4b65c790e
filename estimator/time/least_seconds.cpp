#include "estimator/time/least_seconds.h"

#include <map>

#include "base/numbers/index.h"
#include "estimator/least/job_keys.h"
#include "program/stages/offload.h"

namespace vramfit {

Kernels LeastSeconds::kernels_of(const std::vector<TapeAction>& actions, const SegmentTape& tape) const {
  Kernels kernels;
  for (const TapeAction& action : actions) {
    const bool is_backward = action.what == TapeAction::Do::backward;
    if (!is_backward && action.what != TapeAction::Do::run) continue;
    const Rule& rule = tape.rules[at(action.op)];
    const std::vector<Work>& forward = action.joined < 0 ? rule.work.forward : rule.joint_forward;
    for (const Work& each : is_backward ? rule.work.backward : forward) kernels.then(timer_.kernels_of(each));
  }
  return kernels;
}

const std::vector<LeastSeconds::SegmentTimes>& LeastSeconds::segments_of(const Graph& graph, const Job& job) {
  const std::string key = ops_key(graph, job);
  const auto known = segments_.find(key);
  if (known != segments_.end()) return known->second;
  std::vector<SegmentTimes> times;
  std::map<const SegmentTape*, std::size_t> timed;  // with the first segment of each
  for (const auto& tape : stages_->tapes_of(graph, job)) {
    const auto [like, is_new] = timed.try_emplace(tape.get(), times.size());
    if (!is_new) {
      times.push_back(times[like->second]);
      continue;
    }
    times.push_back({.forward = kernels_of(tape->forward, *tape),
                     .recompute = kernels_of(tape->full.recompute, *tape),
                     .backward = kernels_of(tape->backward, *tape),
                     .recompute_selective = {}});
    for (const CheckpointedTape& each : tape->selective) {
      times.back().recompute_selective.push_back(kernels_of(each.recompute, *tape));
    }
  }
  return segments_.emplace(key, std::move(times)).first->second;
}

LeastSeconds::Parts LeastSeconds::parts_of(const Graph& graph, const Job& job, OpenChoices open) {
  if (job.runtime != Runtime::vramfit) return {};
  if (open.has(OpenChoice::micro_batch) || open.has(OpenChoice::loss)) return {};
  const bool leave = offload_of(job).activations && !cluster_.is_cpu();
  return {.units = &units_of(graph, job),
          .segments = &segments_of(graph, job),
          .saved = leave ? &stages_->saved_of(graph, job) : nullptr};
}

}  // namespace vramfit
