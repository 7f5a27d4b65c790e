#include <algorithm>
#include <utility>

#include "base/numbers/index.h"
#include "program/schedules/schedule.h"
#include "program/stages/optimizer_in_backward.h"

namespace vramfit {

namespace {

/// A unit, and the position after which it may be updated.
using Due = std::pair<std::size_t, int>;

/// Units whose gradients become final before the end, each with the position at which they do.
std::vector<Due> final_gradients(const std::vector<Instruction>& schedule, const ScheduleInputs& inputs) {
  const bool has_replicas = inputs.job.mesh.replicate > 1;
  std::vector<Due> due;
  const std::vector<int>* summed = nullptr;  // the latest bucket
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const Instruction& now = schedule[i];
    if (!has_replicas && now.what == Do::finish) {
      std::erase_if(due, [&](const Due& earlier) { return earlier.second == now.unit; });
      due.emplace_back(i, now.unit);
    }
    if (now.what != Do::sum_replicas) continue;
    if (summed != nullptr) {
      for (const int unit : *summed) due.emplace_back(i, unit);
    }
    summed = &now.bucket;
  }
  return due;
}

/// By unit.
std::vector<std::size_t> last_releases(const std::vector<Instruction>& schedule, std::size_t units) {
  std::vector<std::size_t> last(units, 0);
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].what == Do::release) last[at(schedule[i].unit)] = i;
  }
  return last;
}

}  // namespace

std::vector<Instruction> with_updates_in_backward(std::vector<Instruction> schedule, const ScheduleInputs& inputs) {
  if (!inputs.job.optimizer_in_backward) return schedule;
  require_optimizer_in_backward(inputs.job, inputs.clip);
  std::vector<Due> due = final_gradients(schedule, inputs);
  const std::vector<std::size_t> released = last_releases(schedule, inputs.layout.units.size());
  for (auto& [position, unit] : due) position = std::max(position, released[at(unit)]);
  std::ranges::stable_sort(due, {}, &Due::first);
  std::vector<Instruction> result;
  result.reserve(schedule.size() + due.size());
  auto next = due.begin();
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    result.push_back(std::move(schedule[i]));
    const bool starts_reduction = i + 1 < schedule.size() && schedule[i + 1].what == Do::reduce;
    for (; !starts_reduction && next != due.end() && next->first <= i; ++next) {
      result.push_back({.what = Do::step, .unit = next->second, .last = true});
    }
  }
  return result;
}

}  // namespace vramfit
