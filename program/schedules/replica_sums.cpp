#include <algorithm>

#include "program/schedules/schedule.h"

namespace vramfit {

namespace {

constexpr std::int64_t kFirstBucketBytes = std::int64_t{1} << 20;

/// By unit: where its gradient shard is complete for this rank, or -1.
std::vector<std::ptrdiff_t> last_finishes(const std::vector<Instruction>& schedule, std::size_t units) {
  std::vector<std::ptrdiff_t> last(units, -1);
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].what != Do::finish || !schedule[i].last) continue;
    last[static_cast<std::size_t>(schedule[i].unit)] = static_cast<std::ptrdiff_t>(i);
  }
  return last;
}

}  // namespace

std::vector<Instruction> with_replica_sums(std::vector<Instruction> schedule, const ScheduleInputs& inputs) {
  if (inputs.job.mesh.replicate == 1) return schedule;
  const std::vector<std::ptrdiff_t> last = last_finishes(schedule, inputs.layout.units.size());
  auto to_come = std::ranges::count_if(last, [](std::ptrdiff_t position) { return position >= 0; });
  std::vector<Instruction> result;
  result.reserve(schedule.size());
  Instruction sum;
  sum.what = Do::sum_replicas;
  std::int64_t bytes = 0, full = std::min(kFirstBucketBytes, inputs.job.bucket_bytes);
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    result.push_back(schedule[i]);
    const int unit = schedule[i].unit;
    if (schedule[i].what != Do::finish || last[static_cast<std::size_t>(unit)] != static_cast<std::ptrdiff_t>(i)) {
      continue;
    }
    sum.bucket.push_back(unit);
    bytes = checked_add(bytes, gradient_bytes(inputs.layout.units[static_cast<std::size_t>(unit)]).n);
    if (--to_come > 0 && bytes < full) continue;
    sum.micro_batch = schedule[i].micro_batch;
    sum.last = true;
    result.push_back(sum);
    sum.bucket.clear();
    bytes = 0;
    full = inputs.job.bucket_bytes;
  }
  return result;
}

}  // namespace vramfit
