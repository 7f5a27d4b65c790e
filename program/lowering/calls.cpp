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
  for (std::size_t s = 0; s < in_.graph.segments.size(); ++s) {
    std::size_t like = 0;
    while (in_.tapes[like] != in_.tapes[s] || !has_names_of(in_.graph.segments[like], in_.graph.segments[s])) ++like;
    class_of_segment_.push_back(static_cast<int>(like));
  }
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

CallSlots Calls::bind(int segment, const std::vector<TapeAction>& actions, const SegmentState& state) {
  CallSlots call;
  for (const std::vector<Held>* list : {&state.values, &state.gradients}) {
    std::vector<int>& slots = list == &state.values ? call.values : call.gradients;
    for (const Held& held : *list) slots.push_back(call.slot_of(held));
  }
  for (std::size_t slot = 0; slot < call.slots.size(); ++slot) {
    const auto inside = std::ranges::count(call.values, static_cast<int>(slot)) +
                        std::ranges::count(call.gradients, static_cast<int>(slot));
    // One share is this list's own.
    call.is_kept.push_back(in_.writer.owners(call.slots[slot].buffer()) > inside + 1);
  }
  const std::vector<Op>& ops = in_.graph.segments[at(segment)].ops;
  const auto unit_of = [&](int parameter) -> UnitLowering& {
    return in_.units[at(in_.layout.unit_of_parameter[at(parameter)])];
  };
  for (const Op& op : ops) {
    for (const ParameterUse& use : op.parameters) {
      call.weights.push_back(call.slot_of(unit_of(use.parameter).weights()));
    }
  }
  for (const TapeAction& action : actions) {
    if (action.what != TapeAction::Do::backward) continue;
    const Op& op = ops[at(action.op)];
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      if (!action.needs.parameters[p]) continue;
      const UnitLowering::Home home = unit_of(op.parameters[p].parameter).home(op.kind, op.parameters[p]);
      const int slot = call.slot_of(home.held);
      if (home.is_new) {
        call.is_new[at(slot)] = true;
        call.filled[at(slot)] = home.filled;
      }
      call.homes.push_back(slot);
      call.adds.push_back(home.adds);
    }
  }
  if (at(segment) + 1 == in_.graph.segments.size()) call.loss = call.slot_of(in_.loss);
  call.is_kept.resize(call.slots.size(), true);  // units hold weights and gradients
  return call;
}

CallSlots::Key CallSlots::key(int segment_class) const {
  Key key{segment_class};
  for (const std::vector<int>* list : {&values, &gradients, &weights, &homes}) {
    key.insert(key.end(), list->begin(), list->end());
  }
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    key.push_back((is_kept[slot] ? 1 : 0) + (is_new[slot] ? 2 : 0));
    key.push_back(filled[slot].n);
  }
  for (const bool adds_there : adds) key.push_back(adds_there ? 1 : 0);
  return key;
}

void Calls::call(int segment, const std::vector<TapeAction>& actions, SegmentState& state) {
  CallSlots call = bind(segment, actions, state);
  const int segment_class = class_of_segment_[at(segment)];
  const auto [entry, is_new] = lowered_.try_emplace({&actions, call.key(segment_class)});
  if (is_new) {
    entry->second = lower_block({.graph = in_.graph,
                                 .precision = in_.precision,
                                 .layout = in_.layout,
                                 .shape = in_.shape,
                                 .segment = in_.graph.segments[at(segment)],
                                 .tape = *in_.tapes[at(segment)],
                                 .labels = in_.labels},
                                actions, call);
    entry->second.block = static_cast<int>(blocks_.size());
    blocks_.push_back(std::move(entry->second.code));
  }
  const LoweredBlock& lowered = entry->second;
  for (Buffer made : lowered.made) {
    made.segment = segment;
    call.slots.push_back(in_.writer.declare(made));
  }
  std::vector<int>& bindings = in_.writer.code().bindings;
  const Range range{static_cast<std::uint32_t>(bindings.size()), static_cast<std::uint32_t>(call.slots.size())};
  for (const Held& slot : call.slots) bindings.push_back(slot.buffer());
  in_.writer.write(Call{.block = lowered.block, .segment = segment, .bindings = range});
  in_.writer.be_quiet(true);  // the block writes these frees
  const auto set = [&](std::vector<Held>& list, const std::vector<int>& slots) {
    for (std::size_t v = 0; v < list.size(); ++v) list[v] = slots[v] < 0 ? Held{} : call.slots[at(slots[v])];
  };
  set(state.values, lowered.values);
  set(state.gradients, lowered.gradients);
  call.slots.clear();
  in_.writer.be_quiet(false);
}

}  // namespace vramfit::program
