// Follows the tapes as program/lowering/block.cpp does, but adds up sizes instead of recording events.
#include "estimator/saved_activations.h"

#include <map>

namespace vramfit {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

Bytes bytes_of(const TapeInputs& inputs, const Segment& segment, int value) {
  const Value& v = segment.values[at(value)];
  if (v.type == ValueType::ids) return {};
  return element_count(v, inputs.shape) * dtype_bytes(value_dtype(v, inputs.precision));
}

/// Bytes that are held of each value after `actions`.
std::vector<Bytes> held_after(const std::vector<TapeAction>& actions, const TapeInputs& inputs, const Segment& segment,
                              const SegmentTape& tape) {
  std::vector<Bytes> held(segment.values.size());
  held[0] = bytes_of(inputs, segment, 0);
  for (const TapeAction& action : actions) {
    if (action.what == TapeAction::Do::drop_value) held[at(action.value)] = {};
    if (action.what != TapeAction::Do::run) continue;
    const Op& op = segment.ops[at(action.op)];
    const int taken_over = tape.rules[at(action.op)].in_place_input;
    if (taken_over >= 0) held[at(op.inputs[at(taken_over)])] = {};
    for (const int output : op.outputs) held[at(output)] = bytes_of(inputs, segment, output);
  }
  return held;
}

Bytes inner(const std::vector<Bytes>& held, const Segment& segment) {
  Bytes sum;
  for (std::size_t v = 1; v < held.size(); ++v) {
    if (v != at(segment.output)) sum += held[v];
  }
  return sum;
}

SavedActivations saved_by(const TapeInputs& inputs, const Segment& segment, const SegmentTape& tape) {
  const std::vector<Bytes> forward = held_after(tape.forward, inputs, segment, tape);
  const std::vector<Bytes> recomputed = held_after(tape.recompute, inputs, segment, tape);
  return {.inner = inner(forward, segment),
          .recomputed_inner = inner(recomputed, segment),
          .input = bytes_of(inputs, segment, 0),
          .output = bytes_of(inputs, segment, segment.output),
          .holds_input = forward[0].n > 0,
          .holds_output = tape.output_is_saved,
          .holds_input_recomputed = recomputed[0].n > 0};
}

}  // namespace

std::vector<SavedActivations> saved_activations(const TapeInputs& inputs) {
  std::vector<SavedActivations> saved;
  std::map<const SegmentTape*, SavedActivations> known;  // layers that are built alike share a tape
  const auto tapes = make_shared_tapes(inputs);
  for (std::size_t s = 0; s < tapes.size(); ++s) {
    const auto [entry, is_new] = known.try_emplace(tapes[s].get());
    if (is_new) entry->second = saved_by(inputs, inputs.graph.segments[s], *tapes[s]);
    saved.push_back(entry->second);
  }
  return saved;
}

}  // namespace vramfit
