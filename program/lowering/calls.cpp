#include "program/lowering/calls.h"

#include <algorithm>

#include "base/numbers/index.h"
#include "program/lowering/block.h"

namespace vramfit::program {

namespace {

/// Labels inside a segment are those of another one: ops have the same names. So have values where tapes are shared.
bool has_names_of(const Segment& a, const Segment& b) {
  return std::ranges::equal(a.ops, b.ops, {}, &Op::name, &Op::name);
}

/// For each use of a parameter, op by op, which of the segment's units has it.
std::vector<std::ptrdiff_t> units_of_uses(const UnitLayout& layout, const Segment& segment,
                                          const std::vector<int>& units) {
  std::vector<std::ptrdiff_t> places;
  places.reserve(segment.ops.size());
  for (const Op& op : segment.ops) {
    for (const ParameterUse& use : op.parameters) {
      places.push_back(std::ranges::find(units, layout.unit_of_parameter[at(use.parameter)]) - units.begin());
    }
  }
  return places;
}

}  // namespace

Calls::Calls(const CallInputs& inputs) : in_(inputs) {
  std::vector<std::pair<std::size_t, std::vector<std::ptrdiff_t>>> firsts;  // of each class, with its units_of_uses
  const std::vector<Segment>& segments = in_.graph.segments;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    std::vector<std::ptrdiff_t> units = units_of_uses(in_.layout, segments[s], in_.layout.units_of_segment[s]);
    const auto like = std::ranges::find_if(firsts, [&](const auto& first) {
      return in_.tapes[first.first] == in_.tapes[s] && first.second == units &&
             has_names_of(segments[first.first], segments[s]);
    });
    class_of_segment_.push_back(static_cast<int>(like - firsts.begin()));
    if (like == firsts.end()) firsts.emplace_back(s, std::move(units));
  }
  known_.resize(firsts.size());
}

bool are_alike(const CallSlots& a, const CallSlots& b) {
  const auto same = [](const Slot& p, const Slot& q) {
    return p.dtype == q.dtype && p.is_kept == q.is_kept && p.is_new == q.is_new && p.filled == q.filled;
  };
  return a.values == b.values && a.gradients == b.gradients && a.weights == b.weights && a.homes == b.homes &&
         a.loss == b.loss && std::ranges::equal(a.slots, b.slots, same);
}

Held HeldValues::of(int value) const {
  const auto known = std::ranges::find(list_, value, &std::pair<int, Held>::first);
  return known == list_.end() ? Held{} : known->second;
}

void HeldValues::set(int value, Held held) {
  const auto place = std::ranges::lower_bound(list_, value, {}, &std::pair<int, Held>::first);
  const bool is_there = place != list_.end() && place->first == value;
  if (is_there && held) {
    place->second = std::move(held);
  } else if (is_there) {
    list_.erase(place);
  } else if (held) {
    list_.emplace(place, value, std::move(held));
  }
}

void Calls::clear() {
  for (const Slot& slot : call_.slots) slot_of_buffer_[at(slot.buffer)] = -1;
  call_.slots.clear();
  for (std::vector<SlotOfValue>* list : {&call_.values, &call_.gradients}) list->clear();
  call_.weights.clear();
  call_.homes.clear();
  call_.offsets.clear();
  call_.loss = -1;
}

inline int Calls::slot_of(const Held& held) {
  if (!held) return -1;
  const std::size_t buffer = at(held.buffer());
  const std::vector<Buffer>& buffers = in_.writer.code().buffers;
  if (buffer >= slot_of_buffer_.size()) slot_of_buffer_.resize(buffers.capacity(), -1);
  int& slot = slot_of_buffer_[buffer];
  if (slot >= 0) return slot;
  slot = static_cast<int>(call_.slots.size());
  call_.slots.push_back({.buffer = held.buffer(), .dtype = buffers[buffer].dtype});
  return slot;
}

UnitLowering& Calls::unit_of(int parameter) { return in_.units[at(in_.layout.unit_of_parameter[at(parameter)])]; }

void Calls::bind_values(const SegmentState& state) {
  shares_.clear();
  const auto bind = [&](const HeldValues& held, std::vector<SlotOfValue>& slots) {
    for (const auto& [value, share] : held.list()) {
      const int slot = slot_of(share);
      slots.push_back({value, slot});
      shares_.resize(call_.slots.size());
      ++shares_[at(slot)];
    }
  };
  bind(state.values, call_.values);
  bind(state.gradients, call_.gradients);
  for (std::size_t slot = 0; slot < call_.slots.size(); ++slot) {
    call_.slots[slot].is_kept = in_.writer.owners(call_.slots[slot].buffer) > shares_[slot];
  }
}

void Calls::bind_weights(int segment) {
  for (const int unit : in_.layout.units_of_segment[at(segment)]) {
    call_.weights.push_back(slot_of(in_.units[at(unit)].weights()));
  }
  if (!in_.views.are_kept()) return;
  for (const Op& op : in_.graph.segments[at(segment)].ops) {
    for (const ParameterUse& use : op.parameters) {
      call_.offsets.push_back(unit_of(use.parameter).weight_offset(use.parameter));
    }
  }
}

void Calls::bind_homes(int segment, const std::vector<TapeAction>& actions) {
  for (const TapeAction& action : actions) {
    if (action.what != TapeAction::Do::backward) continue;
    const Op& op = in_.graph.segments[at(segment)].ops[at(action.op)];
    const Needs& needs = in_.tapes[at(segment)]->needs[at(action.op)];
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      if (!needs.parameters[p]) continue;
      const UnitLowering::Home home = unit_of(op.parameters[p].parameter).home(op.kind, op.parameters[p]);
      const int slot = slot_of(home.held);
      if (home.is_new) {
        call_.slots[at(slot)].is_new = true;
        call_.slots[at(slot)].filled = home.filled;
      }
      call_.homes.push_back({slot, home.adds});
      if (in_.views.are_kept()) call_.offsets.push_back(home.offset);
    }
  }
}

void Calls::bind(int segment, const std::vector<TapeAction>& actions, const SegmentState& state) {
  clear();
  bind_values(state);
  bind_weights(segment);  // units hold these, and gradients
  bind_homes(segment, actions);
  if (at(segment) + 1 == in_.graph.segments.size()) call_.loss = slot_of(in_.loss);
}

void Calls::make_gradient_shard(int segment) {
  int written = -1;  // unit
  const SegmentTape& tape = *in_.tapes[at(segment)];
  for (const TapeAction& action : tape.backward) {
    if (action.what != TapeAction::Do::backward) continue;
    const Op& op = in_.graph.segments[at(segment)].ops[at(action.op)];
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      if (!tape.needs[at(action.op)].parameters[p]) continue;
      const int parameter = op.parameters[p].parameter, unit = in_.layout.unit_of_parameter[at(parameter)];
      if (!is_direct_gradient(op.kind, parameter, in_.precision, in_.layout)) return;
      if (written >= 0 && unit != written) return;
      written = unit;
    }
  }
  if (written >= 0) in_.units[at(written)].make_gradient_shard();
}

Calls::Known& Calls::block_of(int segment, const std::vector<TapeAction>& actions) {
  std::vector<Known>& known = known_[at(class_of_segment_[at(segment)])];
  const auto found = std::ranges::find_if(
      known, [&](const Known& each) { return each.actions == &actions && are_alike(each.call, call_); });
  if (found != known.end()) return *found;
  LoweredBlock lowered = lower_block({.graph = in_.graph,
                                      .precision = in_.precision,
                                      .layout = in_.layout,
                                      .shape = in_.shape,
                                      .segment = in_.graph.segments[at(segment)],
                                      .tape = *in_.tapes[at(segment)],
                                      .units = in_.layout.units_of_segment[at(segment)],
                                      .labels = in_.labels,
                                      .views = in_.views},
                                     actions, call_);
  lowered.block = static_cast<int>(blocks_.size());
  blocks_.push_back(std::move(lowered.code));
  known.push_back({.actions = &actions, .call = call_, .lowered = std::move(lowered), .offsets = {}});
  return known.back();
}

/// Layers in units of their own have the same ones, written down once.
Range Calls::offsets_of(Known& known) {
  std::vector<std::int64_t>& all = in_.writer.code().offsets;
  const auto latest = all.begin() + known.offsets.first;
  const bool is_known = known.offsets.count == call_.offsets.size() &&
                        std::equal(latest, latest + known.offsets.count, call_.offsets.begin());
  if (is_known) return known.offsets;
  known.offsets = {static_cast<std::uint32_t>(all.size()), static_cast<std::uint32_t>(call_.offsets.size())};
  all.insert(all.end(), call_.offsets.begin(), call_.offsets.end());
  return known.offsets;
}

Range Calls::bindings_of(int segment, const LoweredBlock& lowered) {
  std::vector<int>& bindings = in_.writer.code().bindings;
  const std::size_t first = bindings.size(), count = call_.slots.size() + lowered.made.size();
  bindings.resize(first + count);
  auto next = bindings.begin() + static_cast<std::ptrdiff_t>(first);
  for (const Slot& slot : call_.slots) *next++ = slot.buffer;
  for (Buffer made : lowered.made) {
    made.segment = segment;
    *next++ = in_.writer.declare(made).buffer();
  }
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)};
}

void Calls::hold(const std::vector<SlotOfValue>& slots, Range bindings, HeldValues& values) {
  std::vector<std::pair<int, Held>>& list = values.list();
  list.resize(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const int buffer = in_.writer.code().bindings[bindings.first + at(slots[i].slot)];
    list[i] = {slots[i].value, Held(in_.writer, buffer)};
  }
}

void Calls::call(int segment, const std::vector<TapeAction>& actions, SegmentState& state) {
  bind(segment, actions, state);
  Known& known = block_of(segment, actions);
  in_.writer.be_quiet(true);  // the block writes these frees
  const Range bindings = bindings_of(segment, known.lowered);
  in_.writer.write(
      Call{.block = known.lowered.block, .segment = segment, .bindings = bindings, .offsets = offsets_of(known)});
  hold(known.lowered.values, bindings, state.values);
  hold(known.lowered.gradients, bindings, state.gradients);
  in_.writer.be_quiet(false);
}

}  // namespace vramfit::program
