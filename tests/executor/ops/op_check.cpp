#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "program/stages/units_layout.h"
#include "tests/executor/ops/allocations_torch.h"
#include "tests/executor/ops/difference_torch.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

at::ScalarType scalar(Dtype dtype) {
  if (dtype == Dtype::f32) return at::kFloat;
  if (dtype == Dtype::f16) return at::kHalf;
  return dtype == Dtype::i64 ? at::kLong : at::kBFloat16;
}

class ListedTemporaries final : public Temporaries {
 public:
  explicit ListedTemporaries(at::Device place) : place_(place) {}
  at::Tensor allocate(std::string_view name, const std::vector<std::int64_t>& sizes, Dtype dtype) override {
    at::Tensor made = at::empty(sizes, at::device(place_).dtype(scalar(dtype)));
    names.push_back(fmt::format("{} {}", name, made.nbytes()));
    const Uncounted filling;
    made.fill_(scalar(dtype) == at::kLong ? 77 : NAN);  // nothing may rely on what is in it
    held.push_back(made);
    return made;
  }
  std::vector<std::string> names;
  std::vector<at::Tensor> held;

 private:
  at::Device place_;
};

/// A parameter inside a larger one.
at::Tensor sliced(const at::Tensor& t, bool columns) {
  if (t.dim() != 2) return t;
  const int dim = columns ? 1 : 0;
  std::vector<std::int64_t> sizes = t.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] *= 3;
  at::Tensor large = at::full(sizes, 7.0, t.options());
  at::Tensor part = large.narrow(dim, t.size(dim), t.size(dim));
  part.copy_(t);
  return part;
}

bool is_ids(const at::Tensor& t) { return t.scalar_type() == at::kLong; }

/// One run: the op's surroundings, its tensors and what autograd says.
class Run {
 public:
  Run(const OpCase& op, const OpRun& run)
      : case_(op), run_(run), precision_(precision_named(run.precision)), temporaries_(run.place) {
    compute_ = scalar(precision_.compute);
    device_.kind = run.device;
    device_.compute_capability = run.device == DeviceKind::cuda ? 80 : 0;
    device_.sm_count = run.multiprocessors;
    describe();
    rule_ = rule_for(context(), needs_);
    make_truth();
    place_tensors();
  }

  void forward() {
    for (const OpCase::Output& output : case_.outputs) {
      outputs_.push_back(full_of_nan(output.sizes, output.is_fp32 ? at::kFloat : compute_));
    }
    if (rule_.in_place_input >= 0) outputs_[0] = inputs_[static_cast<std::size_t>(rule_.in_place_input)];
    if (rule_.outputs_inside) outputs_.assign(outputs_.size(), at::Tensor());
    OpCall call = make_call();
    call.inputs = inputs_;
    call.outputs = outputs_;
    counted([&] { op_functions(case_.kind, run_.device, run_.kernels).forward(call); }, rule_.forward, "forward");
    outputs_ = call.outputs;
    if (case_.kind != OpKind::linear_cross_entropy || !needs_.any()) {
      compare("output", outputs_[0], {.truth = truth_output_});
    }
  }

  std::vector<at::Tensor> backward() {
    OpCall call = make_call();
    place_saved(call);
    at::Tensor gradient = output_gradient_;
    if (gradient.defined()) call.output_gradient = &gradient;
    place_input_gradients(call);
    place_parameter_gradients(call);
    counted([&] { op_functions(case_.kind, run_.device, run_.kernels).backward(call); }, rule_.backward, "backward");
    compare_gradients("input", needs_.inputs, call.input_gradients, expected_inputs_);
    compare_gradients("parameter", needs_.parameters, call.parameter_gradients, expected_parameters_);
    if (case_.kind == OpKind::linear_cross_entropy) compare("loss", outputs_[0], {.truth = truth_output_});
    std::vector<at::Tensor> gradients = call.input_gradients;
    gradients.insert(gradients.end(), call.parameter_gradients.begin(), call.parameter_gradients.end());
    for (at::Tensor& one : gradients) one = on_device(one, at::kCPU);
    return gradients;
  }

  bool wants_backward() const { return needs_.any(); }
  at::Tensor output() const { return outputs_[0].cpu().clone(); }
  std::vector<at::Tensor> others() const { return {outputs_.begin() + 1, outputs_.end()}; }

  const std::vector<std::string>& differences() const { return differences_; }

 private:
  OpContext context() const {
    return {.op = graph_.segments[0].ops[0],
            .segment = graph_.segments[0],
            .graph = graph_,
            .precision = precision_,
            .device = device_,
            .attention = run_.attention,
            .deterministic = run_.deterministic,
            .shape = case_.shape,
            .kernels = run_.kernels};
  }

  void compare(const std::string& what, const at::Tensor& got, const Expected& expected) {
    const std::string wrong = difference(got.cpu(), expected, run_.tolerance);
    if (!wrong.empty()) differences_.push_back(fmt::format("{} of {}: {}", what, op_name(case_.kind), wrong));
  }

  void compare_gradients(const char* what, const std::vector<bool>& wanted, const std::vector<at::Tensor>& got,
                         const std::vector<Expected>& expected) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (wanted[i]) compare(fmt::format("gradient of {} {}", what, i), got[i], expected[i]);
    }
  }

  static int add_value(Segment& segment, at::IntArrayRef sizes, ValueType type) {
    Value value{.name = "v", .shape = {}, .type = type};
    value.shape.reserve(sizes.size());
    for (const std::int64_t size : sizes) value.shape.push_back(fixed(size));
    segment.values.push_back(value);
    return static_cast<int>(segment.values.size()) - 1;
  }

  void describe() {
    Segment segment;
    Op op;
    op.kind = case_.kind;
    op.attributes = case_.attributes;
    for (const at::Tensor& input : case_.inputs) {
      op.inputs.push_back(add_value(segment, input.sizes(), is_ids(input) ? ValueType::ids : ValueType::compute));
      needs_.inputs.push_back(!is_ids(input));
      inputs_.push_back(is_ids(input) ? input : input.to(compute_, false, true));
    }
    for (const OpCase::Output& output : case_.outputs) {
      op.outputs.push_back(add_value(segment, output.sizes, output.is_fp32 ? ValueType::fp32 : ValueType::compute));
    }
    for (const at::Tensor& parameter : case_.parameters) {
      op.parameters.push_back({static_cast<int>(graph_.parameters.size())});
      graph_.parameters.push_back({"p", parameter.sizes().vec()});
      needs_.parameters.push_back(true);
      const at::Tensor value = parameter.to(compute_, false, true);
      parameters_.push_back(run_.slices ? sliced(value, case_.attributes.transposed_weight) : value);
    }
    for (const at::Tensor& table : case_.rope_cos) graph_.rope_dims.push_back(2 * table.size(1));
    drop_unwanted();
    needs_.accumulate_inputs.assign(inputs_.size(), run_.mode == GradientMode::add);
    needs_.accumulate_parameters.assign(parameters_.size(), run_.mode == GradientMode::add);
    segment.ops.push_back(op);
    if (case_.is_taken_over) {
      Op taker;
      taker.kind = OpKind::scale;
      taker.inputs = taker.outputs = op.outputs;
      segment.ops.push_back(taker);
    }
    graph_.segments.push_back(segment);
  }

  void drop_unwanted() {
    for (const std::size_t constant : case_.constants) drop(constant);
    if (run_.unwanted >= 0) drop(static_cast<std::size_t>(run_.unwanted));
  }

  void drop(std::size_t unwanted) {
    if (unwanted < inputs_.size()) {
      needs_.inputs[unwanted] = false;
    } else {
      needs_.parameters[unwanted - inputs_.size()] = false;
    }
  }

  void make_truth() {
    const auto leaves = [](const std::vector<at::Tensor>& values) {
      std::vector<at::Tensor> result;
      result.reserve(values.size());
      for (const at::Tensor& value : values) {
        result.push_back(is_ids(value) ? value : value.to(at::kDouble).contiguous().requires_grad_());
      }
      return result;
    };
    std::vector<at::Tensor> inputs = leaves(inputs_), parameters = leaves(parameters_);
    const at::Tensor output = case_.truth(inputs, parameters);
    truth_output_ = output.detach();
    const bool is_loss = case_.kind == OpKind::cross_entropy || case_.kind == OpKind::linear_cross_entropy;
    if (!is_loss) output_gradient_ = output_gradient_of(case_).to(compute_);
    output.backward(is_loss ? at::ones_like(output) : output_gradient_.to(at::kDouble));
    for (const at::Tensor& input : inputs) {
      expected_inputs_.push_back({.truth = is_ids(input) ? at::Tensor() : input.grad()});
    }
    for (const at::Tensor& parameter : parameters) {
      expected_parameters_.push_back({.truth = parameter.grad(), .additions = case_.attributes.chunks});
    }
    if (!case_.cancelled) return;
    const std::vector<at::Tensor> cancelled = case_.cancelled(inputs, output_gradient_.to(at::kDouble));
    for (std::size_t i = 0; i < cancelled.size(); ++i) {
      (i < inputs.size() ? expected_inputs_[i] : expected_parameters_[i - inputs.size()]).cancelled = cancelled[i];
    }
  }

  void place_tensors() {
    rope_cos_ = case_.rope_cos;
    rope_sin_ = case_.rope_sin;
    for (std::vector<at::Tensor>* const all : {&inputs_, &parameters_, &rope_cos_, &rope_sin_}) {
      for (at::Tensor& tensor : *all) tensor = on_device(tensor, run_.place);
    }
    output_gradient_ = on_device(output_gradient_, run_.place);
  }

  at::Tensor full_of_nan(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::full(sizes, NAN, at::device(run_.place).dtype(type));
  }

  OpCall make_call() {
    facts_.loss_scale = case_.loss_scale;
    facts_.rope_cos = &rope_cos_;
    facts_.rope_sin = &rope_sin_;
    contexts_.push_back(context());
    temporaries_ = ListedTemporaries(run_.place);
    return {.context = contexts_.back(),
            .needs = needs_,
            .facts = facts_,
            .temporaries = temporaries_,
            .inputs = {},
            .outputs = {},
            .parameters = parameters_,
            .input_gradients = {},
            .parameter_gradients = {}};
  }

  bool is_saved(const Ref& ref) const { return std::ranges::find(rule_.saved, ref) != rule_.saved.end(); }

  /// Only what the rule saves is there in backward; the chunked loss is made there.
  void place_saved(OpCall& call) const {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      call.inputs.push_back(is_saved({Ref::Of::input, static_cast<int>(i)}) ? inputs_[i] : at::Tensor());
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const bool loss = i == 0 && case_.kind == OpKind::linear_cross_entropy;
      call.outputs.push_back(loss || is_saved({Ref::Of::output, static_cast<int>(i)}) ? outputs_[i] : at::Tensor());
    }
  }

  /// Where the gradient of input i is to go.
  at::Tensor input_target(const OpCall& call, std::size_t i) const {
    using enum GradientSource::From;
    const GradientSource source = i < rule_.gradients.size() ? rule_.gradients[i] : GradientSource{};
    if (run_.mode == GradientMode::add) {
      return on_device(random_like(expected_inputs_[i].truth, 5 + i).to(compute_), run_.place);
    }
    if (run_.mode == GradientMode::taken && source.from == saved) {
      return inputs_[static_cast<std::size_t>(source.index)];
    }
    const bool from_output = source.from == output_gradient || source.from == pass_through;
    if (run_.mode == GradientMode::taken && from_output) return *call.output_gradient;
    return rule_.gradients_inside ? at::Tensor() : full_of_nan(case_.inputs[i].sizes(), compute_);
  }

  /// A gradient is added to what its place holds, or written afresh.
  void note_before(Expected& expected, const at::Tensor& place) const {
    expected.before =
        run_.mode == GradientMode::add && place.defined() ? place.cpu().to(at::kDouble, false, true) : at::Tensor();
  }

  void place_input_gradients(OpCall& call) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      call.input_gradients.push_back(needs_.inputs[i] ? input_target(call, i) : at::Tensor());
      note_before(expected_inputs_[i], call.input_gradients.back());
    }
  }

  void place_parameter_gradients(OpCall& call) {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      at::Tensor target;
      if (needs_.parameters[p]) {
        const at::ScalarType type = scalar(gradient_dtype(case_.kind, precision_));
        const std::vector<std::int64_t> sizes = parameters_[p].sizes().vec();
        target = run_.mode == GradientMode::add
                     ? on_device(random_like(expected_parameters_[p].truth, 50 + p).to(type), run_.place)
                     : full_of_nan(sizes, type);
        if (run_.slices) target = sliced(target, case_.attributes.transposed_weight);
      }
      call.parameter_gradients.push_back(target);
      note_before(expected_parameters_[p], target);
    }
  }

  template <typename F>
  void counted(const F& kernel, const std::vector<Step>& steps, const char* what) {
    const Allocations made = allocations_at(run_.place, kernel);
    if (run_.device != DeviceKind::cpu && run_.kernels == KernelSource::libtorch) return;
    std::vector<std::string> listed;
    std::vector<std::int64_t> bytes;
    for (const Step& step : steps) {
      listed.push_back(fmt::format("{} {}", step.name, step.bytes.n));
      bytes.push_back(step.bytes.n);
    }
    INFO(what);
    CHECK(temporaries_.names == listed);
    if (run_.place.is_cpu()) {
      CHECK(made.on_cpu == bytes);
    } else if (case_.kind != OpKind::linear_cross_entropy) {  // a GPU's products have workspaces of their own
      CHECK(made.on_gpu == static_cast<std::int64_t>(bytes.size()));
      CHECK(made.bytes_on_gpu == std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
    }
  }

  const OpCase& case_;
  const OpRun& run_;
  Precision precision_;
  at::ScalarType compute_ = at::kFloat;
  Device device_;
  Graph graph_;
  Needs needs_;
  Rule rule_;
  StepFacts facts_;
  ListedTemporaries temporaries_;
  std::vector<OpContext> contexts_;
  std::vector<at::Tensor> inputs_, outputs_, parameters_, rope_cos_, rope_sin_;
  at::Tensor truth_output_, output_gradient_;
  std::vector<Expected> expected_inputs_, expected_parameters_;
  std::vector<std::string> differences_;
};

}  // namespace

at::Tensor output_gradient_of(const OpCase& op) { return random_tensor(op.outputs[0].sizes, 99); }

OpResult run_op(const OpCase& op, const OpRun& run) {
  Run one(op, run);
  one.forward();
  OpResult result{.output = one.output(), .others = one.others(), .gradients = {}, .differences = {}};
  if (one.wants_backward()) result.gradients = one.backward();
  result.differences = one.differences();
  return result;
}

std::vector<at::Tensor> check_op(const OpCase& op, const OpRun& run) {
  CAPTURE(run.precision);
  CAPTURE(static_cast<int>(run.device));
  CAPTURE(static_cast<int>(run.mode));
  CAPTURE(run.slices);
  CAPTURE(run.unwanted);
  const OpResult result = run_op(op, run);
  CHECK(result.differences == std::vector<std::string>());
  return result.gradients;
}

void check_op_in_all_ways(const OpCase& op, bool cuda, Attention attention) {
  const int tensors = static_cast<int>(op.inputs.size() + op.parameters.size());
  // ATen's CPU kernels, which stand in for CUDA's here, add up 16-bit parameters' gradients in 16 bits: `loose`. fp16
  // has three bits of mantissa more than bf16.
  struct Row {
    const char* precision;
    double tolerance, loose;
  };
  for (const Row& row : {Row{"fp32", 2e-6, 2e-6}, Row{"bf16-mixed", 1.5e-2, 4e-2}, Row{"bf16-pure", 1.5e-2, 4e-2},
                         Row{"fp16-mixed", 2e-3, 5e-3}}) {
    for (const GradientMode mode : {GradientMode::fresh, GradientMode::taken, GradientMode::add}) {
      OpRun run{.precision = row.precision, .mode = mode, .tolerance = row.tolerance, .attention = attention};
      run.slices = mode == GradientMode::add;
      check_op(op, run);
      if (!cuda) continue;
      run.device = DeviceKind::cuda;
      run.tolerance = row.loose;
      check_op(op, run);
    }
  }
  for (int tensor = 0; tensor < tensors; ++tensor) {
    OpRun run{
        .mode = GradientMode::taken, .slices = true, .unwanted = tensor, .tolerance = 2e-6, .attention = attention};
    check_op(op, run);
    run = {.precision = "bf16-mixed", .unwanted = tensor, .tolerance = 1.5e-2, .attention = attention};
    check_op(op, run);
  }
}

}  // namespace vramfit::testing
