#include "program/stages/tape.h"

#include <algorithm>
#include <climits>
#include <stdexcept>

#include "base/numbers/index.h"
#include "program/ops/op_row.h"
#include "program/stages/trainable.h"

namespace vramfit {

namespace {

constexpr int kNever = -1;

/// Who reads what in one segment, and which ops take part in backward.
struct Analysis {
  const Segment& segment;
  bool is_last = false;
  bool input_is_shared = false;      // the segment before keeps its output for its own backward
  std::vector<bool> wants_gradient;  // per value
  std::vector<bool> active;          // per op: has a backward
  std::vector<int> first_reader;     // per value: the lowest op whose backward reads it, INT_MAX if none
  std::vector<Rule> rules;
  std::vector<Needs> needs;

  /// Whether an op's backward is a part of the forward pass.
  bool ends_in_forward(int op) const { return active[at(op)] && rules[at(op)].backward_in_forward; }
  bool owned(int value) const { return segment.values[at(value)].type != ValueType::ids; }
  bool saved(int value) const { return first_reader[at(value)] != INT_MAX; }
  /// The values of ours that no backward needs once that of op `op` is done.
  std::vector<int> last_read_by(int op) const {
    std::vector<int> values;
    for (std::size_t v = 0; v < first_reader.size(); ++v) {
      if (first_reader[v] == op && owned(static_cast<int>(v))) values.push_back(static_cast<int>(v));
    }
    return values;
  }
};

int value_of(const Op& op, const Ref& ref) {
  return ref.of == Ref::Of::input ? op.inputs[at(ref.index)] : op.outputs[at(ref.index)];
}

Needs needs_of(const Op& op, const Analysis& a, const std::vector<bool>& trainable) {
  Needs needs;
  for (int value : op.inputs) needs.inputs.push_back(a.wants_gradient[at(value)]);
  for (const ParameterUse& use : op.parameters) needs.parameters.push_back(trainable[at(use.parameter)]);
  needs.accumulate_inputs.assign(op.inputs.size(), false);
  needs.accumulate_parameters.assign(op.parameters.size(), false);
  return needs;
}

Analysis analyse(const TapeInputs& in, const Segment& segment, bool input_wants_gradient) {
  Analysis a{.segment = segment, .wants_gradient = {}, .active = {}, .first_reader = {}, .rules = {}, .needs = {}};
  a.is_last = &segment == &in.graph.segments.back();
  a.wants_gradient.assign(segment.values.size(), false);
  a.wants_gradient[0] = input_wants_gradient;
  a.first_reader.assign(segment.values.size(), INT_MAX);
  for (std::size_t i = 0; i < segment.ops.size(); ++i) {
    const Op& op = segment.ops[i];
    a.needs.push_back(needs_of(op, a, in.trainable));
    a.active.push_back(a.needs.back().any());
    const OpContext context{.op = op,
                            .segment = segment,
                            .graph = in.graph,
                            .precision = in.precision,
                            .device = in.device,
                            .attention = in.attention,
                            .deterministic = in.deterministic,
                            .shape = in.shape,
                            .kernels = in.kernels};
    a.rules.push_back(rule_for(context, a.needs.back()));
    if (!a.active.back()) continue;
    a.wants_gradient[at(op.outputs[0])] = true;
    if (a.rules.back().backward_in_forward) continue;
    for (const Ref& ref : a.rules.back().saved) {
      int& reader = a.first_reader[at(value_of(op, ref))];
      reader = std::min(reader, static_cast<int>(i));
    }
  }
  return a;
}

/// For each value, the last op in `runs` that reads it, or kNever.
std::vector<int> last_uses(const Segment& segment, const std::vector<bool>& runs) {
  std::vector<int> last_use(segment.values.size(), kNever);
  for (std::size_t i = 0; i < segment.ops.size(); ++i) {
    if (!runs[i]) continue;
    for (int value : segment.ops[i].inputs) last_use[at(value)] = static_cast<int>(i);
  }
  return last_use;
}

/// The values that an op in `runs` uses for the last time, each once: inputs in order, then outputs that nothing reads.
std::vector<int> done_after(const Op& op, int index, const std::vector<int>& last_use) {
  std::vector<int> done;
  for (int value : op.inputs) {
    if (last_use[at(value)] == index && std::ranges::find(done, value) == done.end()) done.push_back(value);
  }
  for (int value : op.outputs) {
    if (last_use[at(value)] == kNever) done.push_back(value);
  }
  return done;
}

/// Of an op that is the only one to read its inputs.
TapeAction backward_in_forward_of(const Analysis& a, int op_index) {
  using Mode = GradientTarget::Mode;
  const Op& op = a.segment.ops[at(op_index)];
  if (at(op_index) + 1 != a.segment.ops.size()) {
    throw std::logic_error(a.segment.name + "." + op.name +
                           ": its gradients can't be made in forward, before other ops");
  }
  TapeAction action{.what = TapeAction::Do::backward, .op = op_index};
  for (const int value : op.inputs) {
    action.input_gradients.push_back({.mode = a.wants_gradient[at(value)] ? Mode::fresh : Mode::none});
  }
  return action;
}

/// The run right before that a pass of op `index` can do as well; null: none. Nothing was dropped in between but the
/// value in whose place its output is, so that what both take and make is there together in any case.
TapeAction* run_to_join(const Analysis& a, int index, std::vector<TapeAction>& actions) {
  if (a.rules[at(index)].joint_forward.empty() || actions.size() < 2) return nullptr;
  const Op& op = a.segment.ops[at(index)];
  TapeAction& before = actions[actions.size() - 2];
  const TapeAction& drop = actions.back();
  const bool is_pair = before.what == TapeAction::Do::run && drop.what == TapeAction::Do::drop_value;
  if (!is_pair || before.joined >= 0) return nullptr;
  const Op& first = a.segment.ops[at(before.op)];
  const int place = a.rules[at(before.op)].in_place_input;
  const bool is_of_place = place >= 0 && drop.value == first.inputs[at(place)];
  return is_of_place && op_row(op.kind).joins == first.kind && first.outputs[0] == op.inputs[0] ? &before : nullptr;
}

/// A forward pass over the ops in `runs`, dropping each value at its last use unless `keeps` it.
std::vector<TapeAction> walk_forward(const Analysis& a, const std::vector<bool>& runs, const std::vector<bool>& keeps) {
  const Segment& segment = a.segment;
  const std::vector<int> last_use = last_uses(segment, runs);
  std::vector<TapeAction> actions;
  actions.reserve(segment.ops.size() + segment.values.size());
  const auto drop = [&](int value) {
    if (a.owned(value) && !keeps[at(value)]) {
      actions.push_back({.what = TapeAction::Do::drop_value, .value = value});
    }
  };
  for (std::size_t i = 0; i < segment.ops.size(); ++i) {
    if (!runs[i]) continue;
    const Op& op = segment.ops[i];
    const int index = static_cast<int>(i);
    const int consumed = a.rules[i].in_place_input < 0 ? kNever : op.inputs[at(a.rules[i].in_place_input)];
    if (consumed != kNever && (consumed == 0 || keeps[at(consumed)] || last_use[at(consumed)] != index)) {
      throw std::logic_error(segment.name + "." + op.name + ": in place of a value that is still read");
    }
    if (TapeAction* const before = run_to_join(a, index, actions)) {
      *before = {.what = TapeAction::Do::run, .op = index, .joined = before->op};
    } else {
      actions.push_back({.what = TapeAction::Do::run, .op = index});
    }
    if (a.ends_in_forward(index)) actions.push_back(backward_in_forward_of(a, index));
    for (int value : done_after(op, index, last_use)) drop(value);
  }
  return actions;
}

std::vector<bool> saved_by(const Analysis& a) {
  std::vector<bool> saved(a.segment.values.size(), false);
  for (std::size_t v = 0; v < saved.size(); ++v) saved[v] = a.saved(static_cast<int>(v));
  return saved;
}

std::vector<TapeAction> make_forward(const Analysis& a, std::vector<bool> keeps) {
  keeps[at(a.segment.output)] = true;  // it passes to the next segment
  return walk_forward(a, std::vector<bool>(a.segment.ops.size(), true), keeps);
}

CheckpointedTape make_checkpointed(const Analysis& a, const Recomputation& recomputation) {
  return {.forward = make_forward(a, recomputation.kept),
          .recompute = walk_forward(a, recomputation.runs, saved_by(a))};
}

/// Which gradients exist while backward is walked, and which of them share a storage.
class Gradients {
 public:
  explicit Gradients(std::size_t values) : storage_(values, kNever) {}
  bool exists(int value) const { return storage_[at(value)] != kNever; }
  void make(int value) { storage_[at(value)] = next_++; }
  void share(int value, int with) { storage_[at(value)] = storage_[at(with)]; }
  void drop(int value) { storage_[at(value)] = kNever; }
  bool alone(int value) const { return std::ranges::count(storage_, storage_[at(value)]) == 1; }

 private:
  std::vector<int> storage_;
  int next_ = 0;
};

/// Where the first gradient of input `i` of an op goes.
GradientTarget first_target(const Analysis& a, int op_index, std::size_t i, const Gradients& gradients) {
  using Mode = GradientTarget::Mode;
  const Op& op = a.segment.ops[at(op_index)];
  const Rule& rule = a.rules[at(op_index)];
  const GradientSource source = i < rule.gradients.size() ? rule.gradients[i] : GradientSource{};
  switch (source.from) {
    case GradientSource::From::fresh:
      return {Mode::fresh, -1};
    case GradientSource::From::pass_through:
      return {Mode::take_output_gradient, op.outputs[0]};
    case GradientSource::From::output_gradient:
      return gradients.alone(op.outputs[0]) ? GradientTarget{Mode::take_output_gradient, op.outputs[0]}
                                            : GradientTarget{Mode::fresh, -1};
    case GradientSource::From::saved: {
      const int value = op.inputs[at(source.index)];
      const bool shared = value == a.segment.output || (value == 0 && a.input_is_shared);
      const bool last_reader = a.first_reader[at(value)] == op_index && !shared;
      return last_reader ? GradientTarget{Mode::take_saved, value} : GradientTarget{Mode::fresh, -1};
    }
  }
  throw std::logic_error("unknown gradient source");
}

TapeAction backward_of(const Analysis& a, int op_index, Gradients& gradients) {
  using Mode = GradientTarget::Mode;
  const Op& op = a.segment.ops[at(op_index)];
  TapeAction action{.what = TapeAction::Do::backward, .op = op_index};
  action.input_gradients.reserve(op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const int value = op.inputs[i];
    if (!a.wants_gradient[at(value)]) {
      action.input_gradients.emplace_back();
      continue;
    }
    GradientTarget target{Mode::accumulate, -1};
    if (gradients.exists(value)) {
      if (!gradients.alone(value))
        throw std::logic_error(a.segment.name + "." + op.name + ": adds to a shared gradient");
    } else {
      target = first_target(a, op_index, i, gradients);
      if (target.mode == Mode::take_output_gradient) {
        gradients.share(value, op.outputs[0]);
      } else {
        gradients.make(value);
      }
    }
    action.input_gradients.push_back(target);
  }
  return action;
}

std::vector<TapeAction> make_backward(const Analysis& a) {
  std::vector<TapeAction> actions;
  actions.reserve(a.segment.ops.size() + 2 * a.segment.values.size());
  const auto drop = [&](TapeAction::Do what, int value) { actions.push_back({.what = what, .value = value}); };
  Gradients gradients(a.segment.values.size());
  if (!a.is_last && a.wants_gradient[at(a.segment.output)]) gradients.make(a.segment.output);
  for (std::size_t i = a.segment.ops.size(); i-- > 0;) {
    if (!a.active[i]) continue;
    const Op& op = a.segment.ops[i];
    const int index = static_cast<int>(i), output = op.outputs[0];
    if (a.ends_in_forward(index)) {
      for (const int value : op.inputs) {
        if (a.wants_gradient[at(value)]) gradients.make(value);
      }
      continue;
    }
    if (!op_row(op.kind).is_loss && !gradients.exists(output)) {
      throw std::logic_error(a.segment.name + "." + op.name + ": its output has no gradient");
    }
    actions.push_back(backward_of(a, index, gradients));
    if (gradients.exists(output)) {
      gradients.drop(output);
      drop(TapeAction::Do::drop_gradient, output);
    }
    for (int value : a.last_read_by(index)) drop(TapeAction::Do::drop_value, value);
  }
  if (a.is_last) drop(TapeAction::Do::drop_value, a.segment.output);
  return actions;
}

using Made = KnownTapes::Made;

Made make_tape(const TapeInputs& inputs, const Segment& segment, const IncomingTape& incoming) {
  Analysis a = analyse(inputs, segment, incoming.wants_gradient);
  a.input_is_shared = incoming.is_shared;
  SegmentTape tape;
  tape.input_wants_gradient = incoming.wants_gradient;
  tape.has_backward = std::ranges::any_of(a.active, [](bool b) { return b; });
  const std::vector<bool> saved = saved_by(a);
  tape.forward = make_forward(a, saved);
  if (tape.has_backward) {
    const BlockOps block{segment, a.rules, saved, inputs.precision, inputs.shape};
    tape.full = make_checkpointed(a, recompute_all(block));
    if (segment.role == SegmentRole::block && !inputs.policies.empty()) {
      for (const Recomputation& each : recompute_but(block, inputs.policies)) {
        tape.selective.push_back(make_checkpointed(a, each));
      }
    }
    tape.backward = make_backward(a);
  }
  tape.output_is_saved = a.saved(segment.output);
  const IncomingTape outgoing{a.wants_gradient[at(segment.output)], tape.output_is_saved};
  tape.rules = std::move(a.rules);
  tape.needs = std::move(a.needs);
  return {&segment, incoming, outgoing, std::make_shared<const SegmentTape>(std::move(tape))};
}

/// Whether two segments have the same ops on the same values, with parameters of the same shapes of which the same are
/// trained: everything that a tape and its rules depend on.
bool are_alike(const TapeInputs& in, const Segment& a, const Segment& b) {
  const auto same_parameter = [&](const ParameterUse& p, const ParameterUse& q) {
    return p.first == q.first && p.count == q.count && in.trainable[at(p.parameter)] == in.trainable[at(q.parameter)] &&
           in.graph.parameters[at(p.parameter)].shape == in.graph.parameters[at(q.parameter)].shape;
  };
  const auto same_op = [&](const Op& p, const Op& q) {
    return p.kind == q.kind && p.inputs == q.inputs && p.outputs == q.outputs && p.attributes == q.attributes &&
           std::ranges::equal(p.parameters, q.parameters, same_parameter);
  };
  return a.role == b.role && a.input == b.input && a.output == b.output && a.labels == b.labels &&
         a.values == b.values && std::ranges::equal(a.ops, b.ops, same_op);
}

/// Whether the graph's parameters are those of what is known.
bool are_of_known(const TapeInputs& in, const KnownTapes& known) {
  return in.trainable == known.trainable &&
         std::ranges::equal(in.graph.parameters, known.shapes, {}, &Parameter::shape);
}

}  // namespace

bool Needs::any() const {
  const auto wants = [](bool b) { return b; };
  return std::ranges::any_of(inputs, wants) || std::ranges::any_of(parameters, wants);
}

bool in_loss_region(const Segment& segment, int value) {
  if (segment.role == SegmentRole::loss) return true;
  return segment.role == SegmentRole::head && segment.values[at(value)].name.starts_with("logits");
}

TapeInputs tape_inputs(const Graph& graph, const Job& job, const Device& device) {
  return {.graph = graph,
          .precision = job.precision,
          .device = device,
          .attention = job.attention,
          .deterministic = job.deterministic,
          .shape = {job.micro_batch, job.sequence},
          .trainable = trainable_parameters(graph, job),
          .policies = kept_policies(job.checkpointing),
          .kernels = job.kernels};
}

const CheckpointedTape& checkpointed_tape(const SegmentTape& tape, const Job& job) {
  return is_selective(job.checkpointing) ? tape.selective.at(policy_number(job.checkpointing)) : tape.full;
}

SharedTapes make_shared_tapes(const TapeInputs& inputs) {
  KnownTapes none;
  return make_shared_tapes(inputs, none);
}

SharedTapes make_shared_tapes(const TapeInputs& inputs, KnownTapes& known) {
  if (!are_of_known(inputs, known)) {
    known = {.shapes = {}, .trainable = inputs.trainable, .made = {}};
    for (const Parameter& parameter : inputs.graph.parameters) known.shapes.push_back(parameter.shape);
  }
  SharedTapes tapes;
  IncomingTape incoming;
  for (const Segment& segment : inputs.graph.segments) {
    const bool is_last = &segment == &inputs.graph.segments.back();
    const auto like = std::ranges::find_if(known.made, [&](const Made& m) {
      return !is_last && m.incoming == incoming && are_alike(inputs, *m.segment, segment);
    });
    const bool is_new = like == known.made.end();
    const Made made = is_new ? make_tape(inputs, segment, incoming) : *like;
    tapes.push_back(made.tape);
    incoming = made.outgoing;
    if (is_new && !is_last) known.made.push_back(made);
  }
  return tapes;
}

std::vector<SegmentTape> make_tapes(const TapeInputs& inputs) {
  std::vector<SegmentTape> tapes;
  for (const auto& tape : make_shared_tapes(inputs)) tapes.push_back(*tape);
  return tapes;
}

}  // namespace vramfit
