// The schedule of runtime vramfit. Gathers run ahead of compute by the prefetch depth, at most one reduction
// is in flight, and every unit is released as soon as neither the next pass nor the reshard policy needs it.
#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "job/sharding/sharding.h"
#include "program/schedules/schedule.h"
#include "program/stages/offload.h"
#include "program/stages/trainable.h"
#include "program/stages/wrapping.h"

namespace vramfit {

namespace {

constexpr std::size_t kInstructionsOfAPass = 8;  // at most, where a pass has one unit

/// One pass of a segment: forward, or backward (with its recompute).
struct Pass {
  int segment = -1;
  bool backward = false;
  std::span<const int> units = {};  // gathered while it runs
};

class Maker {
 public:
  explicit Maker(const ScheduleInputs& inputs) : in_(inputs) {
    check();
    list_ = passes();
    uses_.resize(inputs.layout.units.size());
    for (std::vector<std::size_t>& passes : uses_) passes.reserve(2);  // forward and backward
    live_.resize(inputs.layout.units.size());
    for (std::size_t p = 0; p < list_.size(); ++p) {
      for (const int unit : list_[p].units) uses_[static_cast<std::size_t>(unit)].push_back(p);
    }
  }

  std::vector<Instruction> make() {
    schedule_.reserve(list_.size() * kInstructionsOfAPass * static_cast<std::size_t>(in_.job.accumulation));
    for (micro_batch_ = 0; micro_batch_ < in_.job.accumulation; ++micro_batch_) run_micro_batch();
    if (!std::holds_alternative<NoGradientMask>(in_.job.gradient_mask)) add({.what = Do::mask});
    if (in_.clip) add({.what = Do::clip});
    add({.what = Do::step});
    return std::move(schedule_);
  }

  bool leaves_slices() const {
    for (std::size_t p = 0; p < list_.size(); ++p) {
      for (const int unit : list_[p].units) {
        if (!stays(list_, p, unit) && is_sliced(list_, p, unit)) return true;
      }
    }
    return false;
  }

  int most_live() const {
    std::vector<std::vector<int>> from(list_.size()), until(list_.size());
    for (const Kept& k : kept_units(list_)) {
      from[k.from].push_back(k.unit);
      until[k.until].push_back(k.unit);
    }
    std::vector<int> keepers(in_.layout.units.size(), 0);
    std::vector<std::size_t> seen_by(in_.layout.units.size(), 0);  // the last pass that counted a unit, from 1
    std::size_t kept = 0, most = 0;
    for (std::size_t p = 0; p < list_.size(); ++p) {
      for (const int unit : from[p]) kept += keepers[static_cast<std::size_t>(unit)]++ == 0 ? 1 : 0;
      std::size_t live = 0;  // besides those that are kept
      const auto add = [&](const Pass& pass) {
        for (const int unit : pass.units) {
          std::size_t& seen = seen_by[static_cast<std::size_t>(unit)];
          if (keepers[static_cast<std::size_t>(unit)] == 0 && std::exchange(seen, p + 1) != p + 1) ++live;
        }
      };
      add(list_[p]);
      const std::int64_t depth = list_[p].backward ? backward_depth() : in_.job.forward_prefetch;
      reach_from(list_, p, depth, [&](const Pass& next) {
        add(next);
        return true;
      });
      most = std::max(most, kept + live);
      for (const int unit : until[p]) kept -= --keepers[static_cast<std::size_t>(unit)] == 0 ? 1 : 0;
    }
    return static_cast<int>(most);
  }

 private:
  /// A unit that stays gathered from its last forward pass until a backward pass.
  struct Kept {
    int unit = -1;
    std::size_t from = 0, until = 0;
  };

  std::vector<Kept> kept_units(const std::vector<Pass>& list) const {
    std::vector<Kept> kept;
    for (std::size_t p = 0; p < list.size() && !list[p].backward; ++p) {
      for (const int unit : list[p].units) {
        const Pass* later = next_use(list, p, unit);
        if (later == nullptr || !later->backward || !stays(list, p, unit)) continue;
        kept.push_back({unit, p, static_cast<std::size_t>(later - list.data())});
      }
    }
    return kept;
  }

  void check() const {
    const Job& job = in_.job;
    require_offload(job);
  }

  void add(Instruction instruction) {
    instruction.micro_batch = micro_batch_;
    instruction.last = micro_batch_ + 1 >= in_.job.accumulation;
    schedule_.push_back(std::move(instruction));
  }

  const Segment& segment(int i) const { return in_.graph.segments[static_cast<std::size_t>(i)]; }
  int segments() const { return static_cast<int>(in_.graph.segments.size()); }

  bool is_checkpointed(int i) const {
    return vramfit::is_checkpointed(in_.job, in_.graph, in_.segment_has_backward, i);
  }

  std::vector<Pass> passes() const {
    std::vector<Pass> list;
    list.reserve(2 * static_cast<std::size_t>(segments()));
    for (int i = 0; i < segments(); ++i) {
      list.push_back({i, false, in_.layout.units_of_segment[static_cast<std::size_t>(i)]});
    }
    for (int i = segments() - 1; i >= 0; --i) {
      if (!in_.segment_has_backward[static_cast<std::size_t>(i)]) break;
      Pass pass{i, true};
      if (reads_weights_in_backward(segment(i))) pass.units = in_.layout.units_of_segment[static_cast<std::size_t>(i)];
      list.push_back(pass);
    }
    return list;
  }

  static bool uses(const Pass& pass, int unit) { return std::ranges::find(pass.units, unit) != pass.units.end(); }

  /// The first pass after `p` that uses `unit`, or none.
  const Pass* next_use(const std::vector<Pass>& list, std::size_t p, int unit) const {
    const std::vector<std::size_t>& uses = uses_[static_cast<std::size_t>(unit)];
    const auto later = std::ranges::upper_bound(uses, p);
    return later == uses.end() ? nullptr : &list[*later];
  }

  /// Whether `unit` stays gathered after pass `p`.
  bool stays(const std::vector<Pass>& list, std::size_t p, int unit) const {
    const Pass* later = next_use(list, p, unit);
    if (later == nullptr) return false;
    if (p + 1 < list.size() && uses(list[p + 1], unit)) return true;
    if (list[p].backward) return false;
    const bool head_over_loss = segment(list[p].segment).role == SegmentRole::head && !in_.job.reshard_head;
    return later->backward && (is_kept_for_backward(in_.job, in_.layout, last_block_, unit) || head_over_loss);
  }

  /// Starts gathering what a pass needs, as far as the limit on gathers in flight allows.
  void issue(const Pass& pass) {
    for (int unit : pass.units) {
      if (is_live(unit)) continue;
      if (is_limit_reached()) return;
      live_[static_cast<std::size_t>(unit)] = true;
      in_flight_.push_back(unit);
      add({.what = Do::issue, .unit = unit, .in_group = std::erase(sliced_, unit) > 0});
    }
  }

  bool is_limit_reached() const {
    const std::int64_t limit = in_.job.prefetch_limit;
    return limit > 0 && static_cast<std::int64_t>(in_flight_.size()) >= limit;
  }

  bool is_live(int unit) const { return live_[static_cast<std::size_t>(unit)]; }

  std::int64_t backward_depth() const { return in_.job.backward_prefetch == BackwardPrefetch::none ? 0 : 1; }

  /// Calls `reached` with each of the next `depth` passes in the same direction that need units which pass `p` and
  /// those between don't, as long as it returns true.
  template <typename Reached>
  void reach_from(const std::vector<Pass>& list, std::size_t p, std::int64_t depth, const Reached& reached) const {
    if (in_.layout.shards == 1 && !offload_of(in_.job).parameters) return;  // nothing to hide: a cast
    for (std::size_t next = p + 1, last = p; next < list.size() && depth > 0; ++next) {
      if (list[next].backward != list[p].backward) break;
      if (std::ranges::all_of(list[next].units, [&](int unit) { return uses(list[last], unit); })) continue;
      if (!reached(list[next])) return;
      --depth;
      last = next;
    }
  }

  void prefetch(const std::vector<Pass>& list, std::size_t p, std::int64_t depth) {
    reach_from(list, p, depth, [&](const Pass& next) {
      issue(next);
      return !is_limit_reached();  // in the order in which they are needed, so no pass waits behind a later one
    });
  }

  void wait_for(const Pass& pass) {
    for (int unit : pass.units) {
      issue(pass);
      std::erase(in_flight_, unit);
      add({.what = Do::wait, .unit = unit});
    }
  }

  /// Whether a unit that is dropped after pass `p` is kept in slices.
  bool is_sliced(const std::vector<Pass>& list, std::size_t p, int unit) const {
    if (in_.layout.reshard_ranks == 0 || list[p].backward) return false;
    const Pass* later = next_use(list, p, unit);
    return later != nullptr && later->backward;
  }

  void release_after(const std::vector<Pass>& list, std::size_t p) {
    for (int unit : list[p].units) {
      if (stays(list, p, unit)) continue;
      live_[static_cast<std::size_t>(unit)] = false;
      const bool in_slices = is_sliced(list, p, unit);
      if (in_slices) sliced_.push_back(unit);
      add({.what = in_slices ? Do::reshard : Do::release, .unit = unit});
    }
  }

  void finish_in_flight() {
    for (int unit : reducing_) add({.what = Do::finish, .unit = unit});
    reducing_.clear();
  }

  void run_forward(const std::vector<Pass>& list, std::size_t p) {
    wait_for(list[p]);
    prefetch(list, p, in_.job.forward_prefetch);
    add({.what = Do::forward, .segment = list[p].segment, .checkpointed = is_checkpointed(list[p].segment)});
    release_after(list, p);
  }

  void run_backward(const std::vector<Pass>& list, std::size_t p) {
    const int i = list[p].segment;
    wait_for(list[p]);
    if (in_.job.backward_prefetch == BackwardPrefetch::pre) prefetch(list, p, backward_depth());
    if (is_checkpointed(i)) {
      add({.what = Do::recompute, .segment = i});
      // Without a recompute to hide it, waiting here would only stall.
      if (in_.job.reduce_finish == ReduceFinish::early) finish_in_flight();
    }
    if (in_.job.backward_prefetch == BackwardPrefetch::post) prefetch(list, p, backward_depth());
    add({.what = Do::backward, .segment = i});
    release_after(list, p);
    finish_in_flight();
    for (int unit : in_.layout.units_of_segment[static_cast<std::size_t>(i)]) {
      if (!has_trainable(i, unit)) continue;
      if (keeps_whole_gradients()) {
        add({.what = Do::accumulate, .segment = i, .unit = unit});
        continue;
      }
      add({.what = Do::reduce, .segment = i, .unit = unit});
      reducing_.push_back(unit);
    }
    if (in_.layout.shards == 1) finish_in_flight();  // nothing is in flight; replicas may start
  }

  bool keeps_whole_gradients() const {
    return in_.job.accumulate == Accumulate::unsharded && in_.layout.shards > 1 &&
           micro_batch_ + 1 < in_.job.accumulation;
  }

  bool has_trainable(int segment_index, int unit) const {
    const Unit& u = in_.layout.units[static_cast<std::size_t>(unit)];
    return std::ranges::any_of(segment(segment_index).ops, [&](const Op& op) {
      return std::ranges::any_of(op.parameters, [&](const ParameterUse& use) {
        const auto index = static_cast<std::size_t>(use.parameter);
        const auto slot = static_cast<std::size_t>(in_.layout.slot_of_parameter[index]);
        return in_.layout.unit_of_parameter[index] == unit && u.parameters[slot].trainable;
      });
    });
  }

  void run_micro_batch() {
    add({.what = Do::begin});
    for (std::size_t p = 0; p < list_.size(); ++p) {
      list_[p].backward ? run_backward(list_, p) : run_forward(list_, p);
    }
    finish_in_flight();
    add({.what = Do::end});
  }

  const ScheduleInputs& in_;
  std::vector<Pass> list_;
  std::vector<std::vector<std::size_t>> uses_;  // by unit: the passes of list_ that use it
  std::vector<Instruction> schedule_;
  std::vector<bool> live_;  // by unit: gathered, or being gathered
  std::vector<int> in_flight_, reducing_;
  std::vector<int> sliced_;  // kept in slices by the groups of --reshard N
  int micro_batch_ = 0;
  int last_block_ = last_block(in_.graph);
};

}  // namespace

std::vector<Instruction> make_vramfit_schedule(const ScheduleInputs& inputs) {
  Maker maker(inputs);
  const int most = maker.most_live();
  std::vector<Instruction> schedule = maker.make();
  if (peak_live_units(schedule) > most) {
    throw std::logic_error("the schedule gathers more units at once than prefetch and reshard allow");
  }
  return schedule;
}

int most_live_units(const ScheduleInputs& inputs) { return Maker(inputs).most_live(); }

std::int64_t slice_group_ranks(const Graph& graph, const Job& job) {
  if (reshard_ranks(job) == 0) return 0;
  if (job.runtime != Runtime::vramfit) throw NotModelled("schedules of PyTorch's runtimes");
  const UnitLayout layout = lay_out_units(graph, job);
  const ScheduleInputs inputs{
      .job = job, .graph = graph, .layout = layout, .segment_has_backward = segments_with_backward(graph, job)};
  return Maker(inputs).leaves_slices() ? reshard_ranks(job) : 0;
}

}  // namespace vramfit
