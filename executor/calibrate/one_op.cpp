#include "executor/calibrate/one_op_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

/// Freed when the call ends.
class CallTemporaries final : public Temporaries {
 public:
  explicit CallTemporaries(at::Device place) : place_(place) {}
  at::Tensor allocate(std::string_view name, const std::vector<std::int64_t>& sizes, Dtype dtype) override {
    held_.push_back(allocate_tensor(sizes, dtype, {place_, Category::temporaries, std::string(name)}));
    return held_.back();
  }

 private:
  at::Device place_;
  std::vector<at::Tensor> held_;
};

Value value_of(std::int64_t numbers_of_a_row) {
  return {.name = "value", .shape = {kTokens, fixed(numbers_of_a_row)}, .type = ValueType::compute};
}

}  // namespace

Op OneOp::described(const OpSizes& sizes) {
  Segment& segment = graph_.segments.front();
  const auto add = [&](Value value) {
    segment.values.push_back(std::move(value));
    return static_cast<int>(segment.values.size()) - 1;
  };
  Op op{
      .kind = sizes.kind, .name = "op", .inputs = {}, .parameters = {}, .outputs = {}, .attributes = sizes.attributes};
  for (const std::int64_t numbers : sizes.inputs) op.inputs.push_back(add(value_of(numbers)));
  if (sizes.is_loss) {
    op.inputs.push_back(add({.name = "labels", .shape = {kTokens}, .type = ValueType::ids}));
    op.outputs.push_back(add({.name = "loss", .shape = {fixed(1)}, .type = ValueType::fp32}));
  }
  for (const std::int64_t numbers : sizes.outputs) op.outputs.push_back(add(value_of(numbers)));
  if (sizes.statistics) op.outputs.push_back(add(*sizes.statistics));
  for (const std::vector<std::int64_t>& shape : sizes.parameters) {
    op.parameters.push_back({static_cast<int>(graph_.parameters.size())});
    graph_.parameters.push_back({"parameter", shape});
  }
  return op;
}

OneOp::OneOp(const OpSizes& sizes, const Precision& precision, const Device& device, at::Device place,
             KernelSource kernels)
    : precision_(precision), device_(device), place_(place), kernels_(kernels), shape_(sizes.shape) {
  graph_.segments.resize(1);
  graph_.rope_dims = {2 * sizes.angles};
  graph_.segments.front().ops = {described(sizes)};
  needs_.inputs.assign(sizes.inputs.size(), true);
  if (sizes.is_loss) needs_.inputs.push_back(false);
  needs_.parameters.assign(sizes.parameters.size(), true);
  needs_.accumulate_inputs.assign(needs_.inputs.size(), false);
  needs_.accumulate_parameters.assign(sizes.parameters.size(), false);
  rule_ = rule_for(context(), needs_);
  const Segment& segment = graph_.segments.front();
  const auto value = [&](int index) -> const Value& { return segment.values[static_cast<std::size_t>(index)]; };
  const Op& op = segment.ops.front();
  for (const int input : op.inputs) {
    inputs_.push_back(made(value(input), true));
    input_gradients_.push_back(rule_.gradients_inside ? at::Tensor() : made(value(input), false));
  }
  for (const Parameter& parameter : graph_.parameters) {
    parameters_.push_back(made(parameter.shape, precision_.compute, true));
    parameter_gradients_.push_back(made(parameter.shape, precision_.compute, false));
  }
  output_gradient_ = made(value(op.outputs.front()), true);
  if (sizes.angles == 0) return;
  for (std::vector<at::Tensor>* const table : {&rope_cos_, &rope_sin_}) {
    table->push_back(made({shape_.sequence, sizes.angles}, Dtype::f32, true));
  }
  facts_.rope_cos = &rope_cos_;
  facts_.rope_sin = &rope_sin_;
}

at::Tensor OneOp::made(const std::vector<std::int64_t>& sizes, Dtype dtype, bool is_random) const {
  at::Tensor tensor = allocate_tensor(sizes, dtype, {place_, Category::temporaries, "calibration"});
  // Products of zeros take less power than those of a model, and so run at a higher clock.
  return is_random && dtype != Dtype::i64 ? tensor.uniform_(-1, 1) : tensor.zero_();
}

at::Tensor OneOp::made(const Value& value, bool is_random) const {
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : value.shape) sizes.push_back(resolve(dim, shape_));
  return made(sizes, value_dtype(value, precision_), is_random);
}

OpContext OneOp::context() const {
  const Segment& segment = graph_.segments.front();
  return {.op = segment.ops.front(),
          .segment = segment,
          .graph = graph_,
          .precision = precision_,
          .device = device_,
          .shape = shape_,
          .kernels = kernels_};
}

std::vector<at::Tensor> OneOp::outputs_before() const {
  const Segment& segment = graph_.segments.front();
  std::vector<at::Tensor> outputs;
  for (const int output : segment.ops.front().outputs) {
    outputs.push_back(rule_.outputs_inside ? at::Tensor()
                                           : made(segment.values[static_cast<std::size_t>(output)], false));
  }
  if (rule_.in_place_input >= 0) outputs.front() = inputs_[static_cast<std::size_t>(rule_.in_place_input)];
  return outputs;
}

OpCall OneOp::call(const OpContext& of, Temporaries& temporaries) const {
  return {.context = of,
          .needs = needs_,
          .facts = facts_,
          .temporaries = temporaries,
          .inputs = inputs_,
          .outputs = outputs_,
          .parameters = parameters_,
          .input_gradients = {},
          .parameter_gradients = {}};
}

void OneOp::forward() {
  if (outputs_.empty()) outputs_ = outputs_before();
  const OpContext of = context();
  CallTemporaries temporaries(place_);
  OpCall forward = call(of, temporaries);
  if (rule_.outputs_inside) forward.outputs.assign(outputs_.size(), {});
  op_functions(of.op.kind, device_.kind, kernels_).forward(forward);
  outputs_ = std::move(forward.outputs);
}

void OneOp::backward() {
  const OpContext of = context();
  CallTemporaries temporaries(place_);
  OpCall backward = call(of, temporaries);
  backward.output_gradient = &output_gradient_;
  backward.input_gradients = input_gradients_;
  backward.parameter_gradients = parameter_gradients_;
  op_functions(of.op.kind, device_.kind, kernels_).backward(backward);
}

}  // namespace vramfit
