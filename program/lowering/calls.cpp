#include "program/lowering/calls.h"

#include <algorithm>

#include "program/lowering/block.h"

namespace vramfit::program {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Labels inside a segment are those of another one: values and ops have the same names.
bool has_names_of(const Segment& a, const Segment& b) {
  return std::ranges::equal(a.values, b.values, {}, &Value::name, &Value::name) &&
         std::ranges::equal(a.ops, b.ops, {}, &Op::name, &Op::name);
}

}  // namespace

Calls::Calls(const CallInputs& inputs) : in_(inputs) {
  std::vector<std::size_t> firsts;  // of each class
  const std::vector<Segment>& segments = in_.graph.segments;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const auto like = std::ranges::find_if(firsts, [&](std::size_t first) {
      return in_.tapes[first] == in_.tapes[s] && has_names_of(segments[first], segments[s]);
    });
    class_of_segment_.push_back(static_cast<int>(like - firsts.begin()));
    if (like == firsts.end()) firsts.push_back(s);
  }
}

void CallSlots::clear() {
  for (const Held& slot : slots) {
    if (at(slot.buffer()) < slot_of_buffer_.size()) slot_of_buffer_[at(slot.buffer())] = -1;
  }
  slots.clear();
  filled.clear();
  dtypes.clear();
  offsets.clear();
  for (std::vector<bool>* list : {&is_kept, &is_new, &adds}) list->clear();
  for (std::vector<int>* list : {&values, &gradients, &weights, &homes}) list->clear();
  loss = -1;
}

int CallSlots::slot_of(const Held& held) {
  if (!held) return -1;
  if (at(held.buffer()) >= slot_of_buffer_.size()) slot_of_buffer_.resize(at(held.buffer()) + 1, -1);
  int& slot = slot_of_buffer_[at(held.buffer())];
  if (slot >= 0) return slot;
  slot = static_cast<int>(slots.size());
  slots.push_back(held);
  is_new.push_back(false);
  filled.emplace_back();
  return slot;
}

UnitLowering& Calls::unit_of(int parameter) { return in_.units[at(in_.layout.unit_of_parameter[at(parameter)])]; }

void Calls::note(Bound what, std::size_t index, int slot) {
  constexpr int kSlotBits = 28, kIndexBits = 28;
  const auto kind = static_cast<std::int64_t>(what), number = static_cast<std::int64_t>(index);
  key_.bound.push_back((kind << (kIndexBits + kSlotBits)) + (number << kSlotBits) + slot);
}

void Calls::bind_values(const SegmentState& state) {
  shares_.clear();
  for (const Bound what : {Bound::value, Bound::gradient}) {
    const std::vector<Held>& list = what == Bound::value ? state.values : state.gradients;
    std::vector<int>& slots = what == Bound::value ? call_.values : call_.gradients;
    slots.assign(list.size(), -1);
    for (std::size_t v = 0; v < list.size(); ++v) {
      if (!list[v]) continue;
      slots[v] = call_.slot_of(list[v]);
      shares_.resize(call_.slots.size());
      ++shares_[at(slots[v])];
      note(what, v, slots[v]);
    }
  }
  for (std::size_t slot = 0; slot < call_.slots.size(); ++slot) {
    // One share is this list's own.
    call_.is_kept.push_back(in_.writer.owners(call_.slots[slot].buffer()) > shares_[slot] + 1);
  }
}

void Calls::bind_weights(const std::vector<Op>& ops) {
  for (const Op& op : ops) {
    for (const ParameterUse& use : op.parameters) {
      const UnitLowering& unit = unit_of(use.parameter);
      const int slot = call_.slot_of(unit.weights());
      if (slot >= 0) note(Bound::weights, call_.weights.size(), slot);
      call_.weights.push_back(slot);
      if (in_.views.are_kept()) call_.offsets.push_back(unit.weight_offset(use.parameter));
    }
  }
}

void Calls::bind_homes(const std::vector<Op>& ops, const std::vector<TapeAction>& actions) {
  for (const TapeAction& action : actions) {
    if (action.what != TapeAction::Do::backward) continue;
    const Op& op = ops[at(action.op)];
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      if (!action.needs.parameters[p]) continue;
      const UnitLowering::Home home = unit_of(op.parameters[p].parameter).home(op.kind, op.parameters[p]);
      const int slot = call_.slot_of(home.held);
      if (home.is_new) {
        call_.is_new[at(slot)] = true;
        call_.filled[at(slot)] = home.filled;
      }
      note(home.adds ? Bound::added_home : Bound::home, call_.homes.size(), slot);
      call_.homes.push_back(slot);
      if (in_.views.are_kept()) call_.offsets.push_back(home.offset);
      call_.adds.push_back(home.adds);
    }
  }
}

void Calls::bind(int segment, const std::vector<TapeAction>& actions, const SegmentState& state) {
  call_.clear();
  key_.actions = &actions;
  key_.segment_class = class_of_segment_[at(segment)];
  key_.bound.clear();
  bind_values(state);
  const std::vector<Op>& ops = in_.graph.segments[at(segment)].ops;
  bind_weights(ops);
  bind_homes(ops, actions);
  if (at(segment) + 1 == in_.graph.segments.size()) call_.loss = call_.slot_of(in_.loss);
  call_.is_kept.resize(call_.slots.size(), true);  // units hold weights and gradients
  for (std::size_t slot = 0; slot < call_.slots.size(); ++slot) {
    const Dtype dtype = in_.writer.code().buffers[at(call_.slots[slot].buffer())].dtype;
    call_.dtypes.push_back(dtype);
    key_.bound.push_back((call_.is_kept[slot] ? 1 : 0) + (call_.is_new[slot] ? 2 : 0) + 4 * static_cast<int>(dtype));
    if (call_.is_new[slot]) key_.bound.push_back(call_.filled[slot].n);
  }
}

LoweredBlock& Calls::block_of(int segment, const std::vector<TapeAction>& actions) {
  const auto known = lowered_.find(key_);
  if (known != lowered_.end()) return known->second;
  LoweredBlock& lowered = lowered_[key_];
  lowered = lower_block({.graph = in_.graph,
                         .precision = in_.precision,
                         .layout = in_.layout,
                         .shape = in_.shape,
                         .segment = in_.graph.segments[at(segment)],
                         .tape = *in_.tapes[at(segment)],
                         .labels = in_.labels,
                         .views = in_.views},
                        actions, call_);
  lowered.block = static_cast<int>(blocks_.size());
  blocks_.push_back(std::move(lowered.code));
  return lowered;
}

/// Layers in units of their own have the same ones, written down once.
Range Calls::offsets_of(LoweredBlock& lowered) {
  std::vector<std::int64_t>& all = in_.writer.code().offsets;
  const auto known = all.begin() + lowered.offsets.first;
  const bool is_known = lowered.offsets.count == call_.offsets.size() &&
                        std::equal(known, known + lowered.offsets.count, call_.offsets.begin());
  if (is_known) return lowered.offsets;
  lowered.offsets = {static_cast<std::uint32_t>(all.size()), static_cast<std::uint32_t>(call_.offsets.size())};
  all.insert(all.end(), call_.offsets.begin(), call_.offsets.end());
  return lowered.offsets;
}

void Calls::call(int segment, const std::vector<TapeAction>& actions, SegmentState& state) {
  bind(segment, actions, state);
  LoweredBlock& lowered = block_of(segment, actions);
  for (Buffer made : lowered.made) {
    made.segment = segment;
    call_.slots.push_back(in_.writer.declare(made));
  }
  std::vector<int>& bindings = in_.writer.code().bindings;
  const Range range{static_cast<std::uint32_t>(bindings.size()), static_cast<std::uint32_t>(call_.slots.size())};
  for (const Held& slot : call_.slots) bindings.push_back(slot.buffer());
  in_.writer.write(Call{.block = lowered.block, .segment = segment, .bindings = range, .offsets = offsets_of(lowered)});
  in_.writer.be_quiet(true);  // the block writes these frees
  const auto set = [&](std::vector<Held>& list, const std::vector<int>& slots) {
    for (std::size_t v = 0; v < list.size(); ++v) {
      if (slots[v] < 0) {
        list[v].reset();
      } else {
        list[v] = call_.slots[at(slots[v])];
      }
    }
  };
  set(state.values, lowered.values);
  set(state.gradients, lowered.gradients);
  call_.clear();
  in_.writer.be_quiet(false);
}

}  // namespace vramfit::program
