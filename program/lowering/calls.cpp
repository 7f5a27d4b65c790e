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
  slots.clear();
  filled.clear();
  for (std::vector<bool>* list : {&is_kept, &is_new, &adds}) list->clear();
  for (std::vector<int>* list : {&values, &gradients, &weights, &homes}) list->clear();
  loss = -1;
}

int CallSlots::slot_of(const Held& held) {
  if (!held) return -1;
  const auto found = std::ranges::find(slots, held.buffer(), &Held::buffer);
  if (found != slots.end()) return static_cast<int>(found - slots.begin());
  slots.push_back(held);
  is_new.push_back(false);
  filled.emplace_back();
  return static_cast<int>(slots.size()) - 1;
}

UnitLowering& Calls::unit_of(int parameter) { return in_.units[at(in_.layout.unit_of_parameter[at(parameter)])]; }

void Calls::bind_values(const SegmentState& state) {
  std::vector<int> inside;  // by slot: shares that the segment has
  for (const std::vector<Held>* list : {&state.values, &state.gradients}) {
    std::vector<int>& slots = list == &state.values ? call_.values : call_.gradients;
    for (const Held& held : *list) {
      slots.push_back(call_.slot_of(held));
      inside.resize(call_.slots.size());
      if (held) ++inside[at(slots.back())];
    }
  }
  for (std::size_t slot = 0; slot < call_.slots.size(); ++slot) {
    // One share is this list's own.
    call_.is_kept.push_back(in_.writer.owners(call_.slots[slot].buffer()) > inside[slot] + 1);
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
      call_.homes.push_back(slot);
      call_.adds.push_back(home.adds);
    }
  }
}

void Calls::bind(int segment, const std::vector<TapeAction>& actions, const SegmentState& state) {
  call_.clear();
  bind_values(state);
  const std::vector<Op>& ops = in_.graph.segments[at(segment)].ops;
  for (const Op& op : ops) {
    for (const ParameterUse& use : op.parameters) {
      call_.weights.push_back(call_.slot_of(unit_of(use.parameter).weights()));
    }
  }
  bind_homes(ops, actions);
  if (at(segment) + 1 == in_.graph.segments.size()) call_.loss = call_.slot_of(in_.loss);
  call_.is_kept.resize(call_.slots.size(), true);  // units hold weights and gradients
}

void CallSlots::set_key(Key& key, int segment_class) const {
  key.assign(1, segment_class);
  for (const std::vector<int>* list : {&values, &gradients, &weights, &homes}) {
    key.insert(key.end(), list->begin(), list->end());
  }
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    key.push_back((is_kept[slot] ? 1 : 0) + (is_new[slot] ? 2 : 0));
    key.push_back(filled[slot].n);
  }
  for (const bool adds_there : adds) key.push_back(adds_there ? 1 : 0);
}

const LoweredBlock& Calls::block_of(int segment, const std::vector<TapeAction>& actions) {
  key_.actions = &actions;
  call_.set_key(key_.slots, class_of_segment_[at(segment)]);
  const auto known = lowered_.find(key_);
  if (known != lowered_.end()) return known->second;
  LoweredBlock& lowered = lowered_[key_];
  lowered = lower_block({.graph = in_.graph,
                         .precision = in_.precision,
                         .layout = in_.layout,
                         .shape = in_.shape,
                         .segment = in_.graph.segments[at(segment)],
                         .tape = *in_.tapes[at(segment)],
                         .labels = in_.labels},
                        actions, call_);
  lowered.block = static_cast<int>(blocks_.size());
  blocks_.push_back(std::move(lowered.code));
  return lowered;
}

void Calls::call(int segment, const std::vector<TapeAction>& actions, SegmentState& state) {
  bind(segment, actions, state);
  const LoweredBlock& lowered = block_of(segment, actions);
  for (Buffer made : lowered.made) {
    made.segment = segment;
    call_.slots.push_back(in_.writer.declare(made));
  }
  std::vector<int>& bindings = in_.writer.code().bindings;
  const Range range{static_cast<std::uint32_t>(bindings.size()), static_cast<std::uint32_t>(call_.slots.size())};
  for (const Held& slot : call_.slots) bindings.push_back(slot.buffer());
  in_.writer.write(Call{.block = lowered.block, .segment = segment, .bindings = range});
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
  call_.slots.clear();
  in_.writer.be_quiet(false);
}

}  // namespace vramfit::program
