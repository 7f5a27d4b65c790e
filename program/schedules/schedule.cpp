#include "program/schedules/schedule.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "job/sharding/sharding.h"
#include "program/ops/op_row.h"
#include "program/stages/kept_values.h"
#include "program/stages/offload.h"
#include "program/stages/wrapping.h"

namespace vramfit {

bool reads_weights_in_backward(const Segment& segment) {
  return std::ranges::any_of(
      segment.ops, [](const Op& op) { return !op.parameters.empty() && op_row(op.kind).reads_weights_backward; });
}

int last_block(const Graph& graph) {
  for (int s = static_cast<int>(graph.segments.size()) - 1; s >= 0; --s) {
    if (graph.segments[static_cast<std::size_t>(s)].role == SegmentRole::block) return s;
  }
  return -1;
}

bool is_kept_for_backward(const Job& job, const UnitLayout& layout, int last_block, int unit) {
  if (layout.shards == 1) return false;  // a compute copy is made again without communication
  const Reshard& reshard = job.reshard;
  if (!sharding_named(job.sharding).reshard || std::holds_alternative<ReshardNever>(reshard)) return true;
  if (std::holds_alternative<ReshardAlways>(reshard) || std::holds_alternative<ReshardGroups>(reshard)) return false;
  if (layout.units[static_cast<std::size_t>(unit)].name == kRootUnit) return true;
  if (!std::holds_alternative<ReshardLastKept>(reshard) || last_block < 0) return false;
  const std::vector<int>& units = layout.units_of_segment[static_cast<std::size_t>(last_block)];
  return std::ranges::find(units, unit) != units.end();
}

std::vector<Instruction> make_schedule(const ScheduleInputs& inputs) {
  if (inputs.job.runtime != Runtime::vramfit) throw NotModelled("schedules of PyTorch's runtimes");
  return with_updates_in_backward(with_replica_sums(make_vramfit_schedule(inputs), inputs), inputs);
}

std::string_view instruction_name(Do what) {
  switch (what) {
    case Do::begin:
      return "begin";
    case Do::issue:
      return "issue";
    case Do::wait:
      return "wait";
    case Do::forward:
      return "forward";
    case Do::release:
      return "release";
    case Do::reshard:
      return "reshard";
    case Do::recompute:
      return "recompute";
    case Do::backward:
      return "backward";
    case Do::accumulate:
      return "accumulate";
    case Do::reduce:
      return "reduce";
    case Do::finish:
      return "finish";
    case Do::sum_replicas:
      return "sum_replicas";
    case Do::end:
      return "end";
    case Do::mask:
      return "mask";
    case Do::clip:
      return "clip";
    case Do::step:
      return "step";
  }
  return "";
}

bool is_loss_segment(const Segment& segment) {
  return std::ranges::any_of(segment.ops, [](const Op& op) { return op_row(op.kind).is_loss; });
}

bool is_checkpointed(const Job& job, const Graph& graph, const std::vector<bool>& segment_has_backward, int segment) {
  const auto index = static_cast<std::size_t>(segment);
  if (graph.segments[index].role != SegmentRole::block || !segment_has_backward[index]) return false;
  if (std::holds_alternative<FullCheckpointing>(job.checkpointing) || is_selective(job.checkpointing)) return true;
  // Segment 0 is the embedding, so block b is segment b + 1.
  const auto* every = std::get_if<EveryNth>(&job.checkpointing);
  return every != nullptr && (segment - 1) % every->n == 0;
}

std::vector<bool> segments_that_leave(const Job& job, const Graph& graph, const std::vector<bool>& has_backward) {
  std::vector<bool> leave(graph.segments.size());
  const Offload offload = offload_of(job);
  if (!offload.activations) return leave;
  const int last = last_block(graph);
  for (int s = 0; s < last; ++s) {
    const auto number = static_cast<std::size_t>(s);
    const bool is_one_of_them = (s - 1) % offload.every == 0;  // block b is segment b + 1, as above
    leave[number] = graph.segments[number].role == SegmentRole::block && has_backward[number] && is_one_of_them;
  }
  return leave;
}

Phase phase_of(const Instruction& instruction, bool computes_loss, Phase current) {
  switch (instruction.what) {
    case Do::begin:
      return Phase::forward;
    case Do::forward:
      return computes_loss ? Phase::loss : Phase::forward;
    case Do::recompute:
    case Do::backward:
      return computes_loss ? Phase::loss : Phase::backward;
    case Do::mask:
    case Do::clip:
      return Phase::clip;
    case Do::step:
      return instruction.unit < 0 ? Phase::optimizer : current;
    case Do::issue:
    case Do::wait:
    case Do::release:
    case Do::reshard:
    case Do::accumulate:
    case Do::reduce:
    case Do::finish:
    case Do::sum_replicas:
    case Do::end:
      return current;
  }
  return current;
}

int peak_live_units(const std::vector<Instruction>& schedule) {
  std::vector<char> is_live;  // not of bool: each is looked at alone
  int live = 0, peak = 0;
  for (const Instruction& i : schedule) {
    const bool drops = i.what == Do::release || i.what == Do::reshard;
    if (i.what != Do::issue && !drops) continue;
    const auto unit = static_cast<std::size_t>(i.unit);
    if (unit >= is_live.size()) is_live.resize(unit + 1);
    if ((is_live[unit] != 0) == drops) live += drops ? -1 : 1;
    is_live[unit] = drops ? 0 : 1;
    peak = std::max(peak, live);
  }
  return peak;
}

int peak_gathers_in_flight(const std::vector<Instruction>& schedule) {
  std::set<int> in_flight;
  std::size_t peak = 0;
  for (const Instruction& i : schedule) {
    if (i.what == Do::issue) in_flight.insert(i.unit);
    if (i.what == Do::wait) in_flight.erase(i.unit);
    peak = std::max(peak, in_flight.size());
  }
  return static_cast<int>(peak);
}

}  // namespace vramfit
