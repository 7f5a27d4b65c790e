#include <algorithm>
#include <utility>

#include "executor/meter/meter.h"
#include "executor/observe/observer.h"
#include "executor/tape_torch.h"
#include "executor/tensor_torch.h"
#include "program/trainable.h"

namespace vramfit {

namespace {

std::size_t at_index(int index) { return static_cast<std::size_t>(index); }

/// Temporaries asked for by name, held until the call ends.
class OpTemporaries final : public Temporaries {
 public:
  OpTemporaries(std::string prefix, at::Device place) : prefix_(std::move(prefix)), place_(place) {}
  at::Tensor allocate(std::string_view name, const std::vector<std::int64_t>& sizes, Dtype dtype) override {
    held_.push_back(allocate_tensor(sizes, dtype, {place_, Category::temporaries, prefix_ + ": " + std::string(name)}));
    return held_.back();
  }

 private:
  std::string prefix_;
  at::Device place_;
  std::vector<at::Tensor> held_;
};

bool uses_columns(const Op& op) { return op.attributes.transposed_weight; }

Category category_of(const Segment& segment, int value) {
  return in_loss_region(segment, value) ? Category::logits_and_loss : Category::activations;
}

/// What the kernel is known to allocate by itself, so that the meter can name it.
std::vector<ExpectedAllocation> expected_of(const OpContext& context, const std::vector<Step>& steps, bool backward) {
  std::vector<ExpectedAllocation> expected;
  for (const Step& step : steps) {
    if (step.what == Step::What::temporary) {
      expected.push_back(
          {step.bytes, Category::temporaries, context.segment.name + "." + context.op.name + ": " + step.name});
      continue;
    }
    const bool is_output = step.what == Step::What::output && !backward;
    const bool is_gradient = step.what == Step::What::input_gradient && backward;
    if (!is_output && !is_gradient) continue;
    const int value = (is_output ? context.op.outputs : context.op.inputs)[at_index(step.index)];
    const Value& v = context.segment.values[at_index(value)];
    expected.push_back({element_count(v, context.shape) * dtype_bytes(value_dtype(v, context.precision)),
                        category_of(context.segment, value),
                        context.segment.name + "." + v.name + (backward ? ": gradient" : "")});
  }
  return expected;
}

}  // namespace

TapeRunner::TapeRunner(const TapeContext& context)
    : context_(context), shape_{context.job.micro_batch, context.job.sequence} {
  const TapeInputs inputs{.graph = context.graph,
                          .precision = context.job.precision,
                          .device = context.device,
                          .attention = context.job.attention,
                          .deterministic = context.job.deterministic,
                          .shape = shape_,
                          .trainable = trainable_parameters(context.graph, context.job)};
  tapes_ = make_tapes(inputs);
  for (const Segment& segment : context.graph.segments) {
    SegmentState state;
    state.values.resize(segment.values.size());
    state.gradients.resize(segment.values.size());
    segments_.push_back(std::move(state));
  }
}

void TapeRunner::set_inputs(const at::Tensor& ids, const at::Tensor& labels) {
  segments_.front().values[0] = ids;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const int value = context_.graph.segments[s].labels;
    if (value >= 0) segments_[s].values[at_index(value)] = labels;
  }
}

void TapeRunner::forward(int segment, bool checkpointed, const StepFacts& facts) {
  const SegmentTape& tape = tapes_[at_index(segment)];
  run(segment, checkpointed ? tape.forward_checkpointed : tape.forward, facts);
  if (at_index(segment) + 1 == segments_.size()) return;
  at::Tensor& output = segments_[at_index(segment)].values[at_index(context_.graph.segments[at_index(segment)].output)];
  segments_[at_index(segment) + 1].values[0] = output;
  if (checkpointed || !tape.output_is_saved) output.reset();
}

void TapeRunner::recompute(int segment, const StepFacts& facts) {
  run(segment, tapes_[at_index(segment)].recompute, facts);
}

void TapeRunner::backward(int segment, const StepFacts& facts) {
  if (at_index(segment) + 1 < segments_.size()) {
    const int output = context_.graph.segments[at_index(segment)].output;
    segments_[at_index(segment)].gradients[at_index(output)] = std::move(segments_[at_index(segment) + 1].gradients[0]);
  }
  run(segment, tapes_[at_index(segment)].backward, facts);
}

void TapeRunner::run(int segment, const std::vector<TapeAction>& actions, const StepFacts& facts) {
  for (const TapeAction& action : actions) {
    const bool told = observer != nullptr && action.op >= 0;
    if (told) observer->op_begins(segment, action.op);
    switch (action.what) {
      case TapeAction::Do::run:
        run_forward(segment, action, facts);
        break;
      case TapeAction::Do::backward:
        run_backward(segment, action, facts);
        break;
      case TapeAction::Do::drop_value:
        drop_value(segment, action.value);
        break;
      case TapeAction::Do::drop_gradient:
        segments_[at_index(segment)].gradients[at_index(action.value)].reset();
        break;
    }
    if (told) observer->op_ends();
  }
}

void TapeRunner::drop_value(int segment, int value) {
  at::Tensor& tensor = segments_[at_index(segment)].values[at_index(value)];
  const bool is_loss =
      at_index(segment) + 1 == segments_.size() && value == context_.graph.segments[at_index(segment)].output;
  if (is_loss && tensor.defined() && on_loss) on_loss(tensor);
  tensor.reset();
}

OpContext TapeRunner::op_context(int segment, int op) const {
  const Segment& s = context_.graph.segments[at_index(segment)];
  return {.op = s.ops[at_index(op)],
          .segment = s,
          .graph = context_.graph,
          .precision = context_.job.precision,
          .device = context_.device,
          .attention = context_.job.attention,
          .deterministic = context_.job.deterministic,
          .shape = shape_};
}

std::vector<std::int64_t> TapeRunner::sizes_of(const Value& value) const {
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : value.shape) sizes.push_back(resolve(dim, shape_));
  return sizes;
}

at::Tensor TapeRunner::allocate_value(int segment, int value, bool gradient) const {
  const Segment& s = context_.graph.segments[at_index(segment)];
  const Value& v = s.values[at_index(value)];
  return allocate_tensor(
      sizes_of(v), value_dtype(v, context_.job.precision),
      {context_.place, category_of(s, value), s.name + "." + v.name + (gradient ? ": gradient" : "")});
}

void TapeRunner::add_parameters(OpCall& call) const {
  for (const ParameterUse& use : call.context.op.parameters) {
    const int unit = context_.layout.unit_of_parameter[at_index(use.parameter)];
    call.parameters.push_back(context_.units[at_index(unit)].view(use, uses_columns(call.context.op)));
  }
}

void TapeRunner::run_forward(int segment, const TapeAction& action, const StepFacts& facts) {
  const OpContext context = op_context(segment, action.op);
  const Op& op = context.op;
  const Rule& rule = tapes_[at_index(segment)].rules[at_index(action.op)];
  SegmentState& state = segments_[at_index(segment)];
  const std::string prefix = context.segment.name + "." + op.name;
  OpTemporaries temporaries(prefix, context_.place);
  OpCall call{.context = context,
              .needs = action.needs,
              .facts = facts,
              .temporaries = temporaries,
              .inputs = {},
              .outputs = {},
              .parameters = {},
              .input_gradients = {},
              .parameter_gradients = {}};
  for (int value : op.inputs) call.inputs.push_back(state.values[at_index(value)]);
  for (std::size_t o = 0; o < op.outputs.size(); ++o) {
    if (o == 0 && rule.in_place_input >= 0) {
      at::Tensor taken = std::move(state.values[at_index(op.inputs[at_index(rule.in_place_input)])]);
      call.outputs.push_back(taken.view(sizes_of(context.segment.values[at_index(op.outputs[0])])));
    } else {
      call.outputs.push_back(rule.outputs_inside ? at::Tensor() : allocate_value(segment, op.outputs[o], false));
    }
  }
  add_parameters(call);
  {
    const ExpectedScope scope(expected_of(context, rule.forward, false), prefix + ": unlisted");
    op_functions(op.kind, context_.device.kind).forward(call);
  }
  for (std::size_t o = 0; o < op.outputs.size(); ++o) {
    at::Tensor& output = state.values[at_index(op.outputs[o])];
    output = std::move(call.outputs[o]);
    if (on_value) on_value(context.segment, context.segment.values[at_index(op.outputs[o])], output);
  }
}

void TapeRunner::add_input_gradients(int segment, const TapeAction& action, OpCall& call) {
  using Mode = GradientTarget::Mode;
  const Op& op = call.context.op;
  const Rule& rule = tapes_[at_index(segment)].rules[at_index(action.op)];
  SegmentState& state = segments_[at_index(segment)];
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const GradientTarget& target = action.input_gradients[i];
    at::Tensor& gradient = state.gradients[at_index(op.inputs[i])];
    if (target.mode == Mode::fresh && !rule.gradients_inside) gradient = allocate_value(segment, op.inputs[i], true);
    if (target.mode == Mode::take_output_gradient) gradient = state.gradients[at_index(target.value)];
    if (target.mode == Mode::take_saved) gradient = state.values[at_index(target.value)];
    if (gradient.defined() && target.mode != Mode::none) {
      gradient = gradient.view(sizes_of(call.context.segment.values[at_index(op.inputs[i])]));
    }
    call.input_gradients.push_back(target.mode == Mode::none ? at::Tensor() : gradient);
  }
}

void TapeRunner::add_parameter_gradients(Needs& needs, OpCall& call) {
  const Op& op = call.context.op;
  for (std::size_t p = 0; p < op.parameters.size(); ++p) {
    const ParameterUse& use = op.parameters[p];
    GradientHome home;
    if (needs.parameters[p]) {
      const int unit = context_.layout.unit_of_parameter[at_index(use.parameter)];
      home = context_.units[at_index(unit)].gradient_home(use, op.kind, uses_columns(op));
    }
    needs.accumulate_parameters[p] = home.accumulate;
    call.parameter_gradients.push_back(std::move(home.tensor));
  }
}

void TapeRunner::run_backward(int segment, const TapeAction& action, const StepFacts& facts) {
  const OpContext context = op_context(segment, action.op);
  const Op& op = context.op;
  const Rule& rule = tapes_[at_index(segment)].rules[at_index(action.op)];
  SegmentState& state = segments_[at_index(segment)];
  const std::string prefix = context.segment.name + "." + op.name;
  OpTemporaries temporaries(prefix, context_.place);
  Needs needs = action.needs;
  OpCall call{.context = context,
              .needs = needs,
              .facts = facts,
              .temporaries = temporaries,
              .inputs = std::vector<at::Tensor>(op.inputs.size()),
              .outputs = std::vector<at::Tensor>(op.outputs.size()),
              .parameters = {},
              .input_gradients = {},
              .parameter_gradients = {}};
  for (const Ref& ref : rule.saved) {
    const bool is_input = ref.of == Ref::Of::input;
    const int value = (is_input ? op.inputs : op.outputs)[at_index(ref.index)];
    (is_input ? call.inputs : call.outputs)[at_index(ref.index)] = state.values[at_index(value)];
  }
  // The loss op's result, where it is computed in backward.
  if (at_index(segment) + 1 == segments_.size() && op.outputs[0] == context.segment.output) {
    call.outputs[0] = state.values[at_index(op.outputs[0])];
  }
  call.output_gradient = &state.gradients[at_index(op.outputs[0])];
  add_input_gradients(segment, action, call);
  add_parameter_gradients(needs, call);
  add_parameters(call);
  {
    const ExpectedScope scope(expected_of(context, rule.backward, true), prefix + ": unlisted");
    op_functions(op.kind, context_.device.kind).backward(call);
  }
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (call.input_gradients[i].defined()) state.gradients[at_index(op.inputs[i])] = std::move(call.input_gradients[i]);
  }
}

}  // namespace vramfit
