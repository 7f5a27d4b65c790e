// Follows the tapes as program/lowering/block.cpp does, but adds up sizes instead of recording events.
#include "estimator/least/saved_activations.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/numbers/index.h"
#include "program/stages/offload.h"
#include "program/stages/units_layout.h"

namespace vramfit {

namespace {

/// Which gradients of parameters have buffers of their own.
enum class Buffers { none, one_shard, many_shards };

class Walk {
 public:
  /// `gradient`: the dtype of gradient shards.
  Walk(const TapeInputs& inputs, const Segment& segment, const SegmentTape& tape, Dtype gradient)
      : in_(inputs),
        segment_(segment),
        tape_(tape),
        gradient_dtype_(gradient),
        values_(segment.values.size(), -1),
        gradients_(values_) {}

  void hold_value(int value) { values_[at(value)] = make(bytes_of(value)); }
  void hold_gradient(int value) { gradients_[at(value)] = make(bytes_of(value)); }
  void drop_value(int value) { drop(values_[at(value)]); }

  /// Returns the most that lived.
  Bytes perform(const std::vector<TapeAction>& actions, Buffers buffers) {
    buffers_ = buffers;
    peak_ = live_;
    for (const TapeAction& action : actions) perform(action);
    return peak_;
  }

  bool holds(int value) const { return values_[at(value)] >= 0 && storages_[at(values_[at(value)])].bytes.n > 0; }
  Bytes live() const { return live_; }

  /// What lives of values other than these, each large enough for a copy of its own.
  Bytes worth_a_copy(int input, int output) const {
    std::vector<bool> is_counted(storages_.size());
    for (const int value : {input, output}) {
      if (values_[at(value)] >= 0) is_counted[at(values_[at(value)])] = true;
    }
    Bytes sum;
    for (std::size_t v = 0; v < values_.size(); ++v) {
      const int storage = values_[v];
      if (storage < 0 || is_counted[at(storage)]) continue;
      is_counted[at(storage)] = true;
      const Dtype dtype = value_dtype(segment_.values[v], in_.precision);
      if (is_worth_a_copy(storages_[at(storage)].bytes, dtype)) sum += storages_[at(storage)].bytes;
    }
    return sum;
  }

  Bytes bytes_of(int value) const {
    const Value& v = segment_.values[at(value)];
    if (v.type == ValueType::ids) return {};
    return element_count(v, in_.shape) * dtype_bytes(value_dtype(v, in_.precision));
  }

 private:
  struct Storage {
    Bytes bytes;
    int owners = 0;
  };

  void grow(Bytes bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  int make(Bytes bytes) {
    storages_.push_back({bytes, 1});
    grow(bytes);
    return static_cast<int>(storages_.size()) - 1;
  }
  void drop(int& storage) {
    if (storage >= 0 && --storages_[at(storage)].owners == 0) live_ -= storages_[at(storage)].bytes;
    storage = -1;
  }
  void share(int& taker, int storage) {
    if (storage >= 0) ++storages_[at(storage)].owners;
    drop(taker);
    taker = storage;
  }
  void set_new(int& taker, int value) {
    const int made = make(bytes_of(value));
    drop(taker);
    taker = made;
  }

  void perform(const TapeAction& action) {
    switch (action.what) {
      case TapeAction::Do::run:
        if (action.joined >= 0) forward(action.joined);
        return forward(action.op);
      case TapeAction::Do::backward:
        return backward(action);
      case TapeAction::Do::drop_value:
        return drop(values_[at(action.value)]);
      case TapeAction::Do::drop_gradient:
        return drop(gradients_[at(action.value)]);
    }
  }

  void forward(int index) {
    const Op& op = segment_.ops[at(index)];
    const Rule& rule = tape_.rules[at(index)];
    std::size_t first = 0;
    if (rule.in_place_input >= 0) {
      int& taken = values_[at(op.inputs[at(rule.in_place_input)])];
      values_[at(op.outputs[0])] = std::exchange(taken, -1);
      first = 1;
    }
    if (!rule.outputs_inside) {
      for (std::size_t o = first; o < op.outputs.size(); ++o) set_new(values_[at(op.outputs[o])], op.outputs[o]);
    }
    inside(op, rule.forward, nullptr);
  }

  void backward(const TapeAction& action) {
    using Mode = GradientTarget::Mode;
    const Op& op = segment_.ops[at(action.op)];
    const Rule& rule = tape_.rules[at(action.op)];
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const GradientTarget& target = action.input_gradients[i];
      int& gradient = gradients_[at(op.inputs[i])];
      if (target.mode == Mode::fresh && !rule.gradients_inside) set_new(gradient, op.inputs[i]);
      if (target.mode == Mode::take_output_gradient) share(gradient, gradients_[at(target.value)]);
      if (target.mode == Mode::take_saved) share(gradient, values_[at(target.value)]);
    }
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      if (tape_.needs[at(action.op)].parameters[p]) add_buffer(op.kind, op.parameters[p].parameter);
    }
    inside(op, rule.backward, &action);
  }

  /// Lives until the segment is done.
  void add_buffer(OpKind kind, int parameter) {
    const Dtype dtype = gradient_dtype(kind, in_.precision);
    if (buffers_ == Buffers::none || (buffers_ == Buffers::one_shard && dtype == gradient_dtype_)) return;
    if (std::ranges::find(written_, parameter) != written_.end()) return;
    written_.push_back(parameter);
    grow(element_count(in_.graph.parameters[at(parameter)]) * dtype_bytes(dtype));
  }

  void inside(const Op& op, const std::vector<Step>& steps, const TapeAction* backward) {
    std::vector<std::pair<std::string_view, Bytes>> temporaries;
    for (const Step& step : steps) {
      if (step.what == Step::What::temporary) {
        temporaries.emplace_back(step.name, step.bytes);
        grow(step.bytes);
      } else if (step.what == Step::What::release) {
        std::erase_if(temporaries, [&](const auto& temporary) {
          if (temporary.first != step.name) return false;
          live_ -= temporary.second;
          return true;
        });
      } else if (step.what == Step::What::output) {
        set_new(values_[at(op.outputs[at(step.index)])], op.outputs[at(step.index)]);
      } else if (step.what == Step::What::input_gradient) {
        if (backward->input_gradients[at(step.index)].mode != GradientTarget::Mode::fresh) continue;
        set_new(gradients_[at(op.inputs[at(step.index)])], op.inputs[at(step.index)]);
      }
    }
    for (const auto& temporary : temporaries) live_ -= temporary.second;
  }

  const TapeInputs& in_;
  const Segment& segment_;
  const SegmentTape& tape_;
  Dtype gradient_dtype_;
  std::vector<Storage> storages_;
  std::vector<int> values_, gradients_;  // numbers of storages; -1: none
  std::vector<int> written_;             // parameters whose gradients have buffers
  Buffers buffers_ = Buffers::none;
  Bytes live_, peak_;
};

/// Of a segment that has run as far as its backward pass, the gradient of its output there.
BackwardPeak backward_peak(const Walk& ready, const SegmentTape& tape) {
  const auto with = [&](Buffers buffers) { return Walk(ready).perform(tape.backward, buffers); };
  return {
      .values = with(Buffers::none), .one_shard = with(Buffers::one_shard), .many_shards = with(Buffers::many_shards)};
}

bool makes_gradients(const std::vector<TapeAction>& actions) {
  return std::ranges::any_of(actions, [](const TapeAction& a) { return a.what == TapeAction::Do::backward; });
}

/// Of a segment whose forward pass, which `ready` has before it, makes gradients that its backward pass still has.
void set_peaks_with_gradients(const Walk& ready, const SegmentTape& tape, SavedActivations& saved) {
  for (const auto& [buffers, peak] :
       {std::pair{Buffers::none, &BackwardPeak::values}, std::pair{Buffers::one_shard, &BackwardPeak::one_shard},
        std::pair{Buffers::many_shards, &BackwardPeak::many_shards}}) {
    Walk walk = ready;
    saved.making_gradients.*peak = walk.perform(tape.forward, buffers);
    saved.backward.*peak = walk.perform(tape.backward, buffers);
  }
}

/// What lives of a segment but its input and its output.
Bytes inner_of(const Walk& walk, const Segment& segment) {
  const auto if_held = [&](int value) { return walk.holds(value) ? walk.bytes_of(value) : Bytes{}; };
  return walk.live() - if_held(0) - (segment.output == 0 ? Bytes{} : if_held(segment.output));
}

CheckpointedActivations checkpointed(Walk walk, const Segment& segment, const SegmentTape& tape,
                                     const CheckpointedTape& actions) {
  walk.hold_value(0);
  walk.perform(actions.forward, Buffers::none);
  walk.drop_value(segment.output);
  CheckpointedActivations activations;
  activations.inner = inner_of(walk, segment);
  activations.leaving = walk.worth_a_copy(0, segment.output);
  activations.holds_input = walk.holds(0);
  walk.hold_gradient(segment.output);
  activations.recompute_peak = walk.perform(actions.recompute, Buffers::none);
  activations.backward = backward_peak(walk, tape);
  return activations;
}

SavedActivations saved_by(const TapeInputs& inputs, const Segment& segment, const SegmentTape& tape, Dtype gradient) {
  const bool is_last = &segment == &inputs.graph.segments.back();
  const Walk empty(inputs, segment, tape, gradient);
  Walk forward = empty;
  SavedActivations saved;
  saved.input = forward.bytes_of(0);
  saved.output = forward.bytes_of(segment.output);
  if (is_worth_a_copy(saved.input, value_dtype(segment.values[0], inputs.precision))) saved.leaving_input = saved.input;
  saved.holds_output = tape.output_is_saved;
  forward.hold_value(0);
  const Walk ready = forward;
  saved.forward_peak = forward.perform(tape.forward, Buffers::none);
  saved.holds_input = forward.holds(0);
  if (!is_last && !tape.output_is_saved) forward.drop_value(segment.output);
  saved.inner = inner_of(forward, segment);
  saved.leaving = forward.worth_a_copy(0, segment.output);
  if (!tape.has_backward) return saved;
  if (!is_last) forward.hold_gradient(segment.output);
  if (makes_gradients(tape.forward)) {
    set_peaks_with_gradients(ready, tape, saved);
  } else {
    saved.backward = backward_peak(forward, tape);
  }
  if (segment.role != SegmentRole::block) return saved;
  saved.full = checkpointed(empty, segment, tape, tape.full);
  for (const CheckpointedTape& each : tape.selective) {
    saved.selective.push_back(checkpointed(empty, segment, tape, each));
  }
  return saved;
}

}  // namespace

std::vector<SavedActivations> saved_activations(const TapeInputs& inputs, const SharedTapes& tapes, Dtype gradient) {
  std::vector<SavedActivations> saved;
  std::map<const SegmentTape*, SavedActivations> known;  // layers that are built alike share a tape
  for (std::size_t s = 0; s < tapes.size(); ++s) {
    const auto [entry, is_new] = known.try_emplace(tapes[s].get());
    if (is_new) entry->second = saved_by(inputs, inputs.graph.segments[s], *tapes[s], gradient);
    saved.push_back(entry->second);
  }
  return saved;
}

}  // namespace vramfit
