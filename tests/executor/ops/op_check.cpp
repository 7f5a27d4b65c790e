#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <random>

#include "program/units_layout.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

/// Notes every allocation while `counting`.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (counting) seen.push_back(static_cast<std::int64_t>(bytes));
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool counting = false;
  std::vector<std::int64_t> seen;
};

CountingAllocator& counter() {
  static CountingAllocator allocator;
  static const bool kInstalled = [] {
    c10::SetCPUAllocator(&allocator, 1);
    return true;
  }();
  static_cast<void>(kInstalled);
  return allocator;
}

at::ScalarType scalar(Dtype dtype) {
  if (dtype == Dtype::f32) return at::kFloat;
  if (dtype == Dtype::f16) return at::kHalf;
  return dtype == Dtype::i64 ? at::kLong : at::kBFloat16;
}

class ListedTemporaries final : public Temporaries {
 public:
  at::Tensor allocate(std::string_view name, const std::vector<std::int64_t>& sizes, Dtype dtype) override {
    at::Tensor made = at::empty(sizes, scalar(dtype));
    names.push_back(fmt::format("{} {}", name, made.nbytes()));
    counter().counting = false;
    made.fill_(scalar(dtype) == at::kLong ? 77 : NAN);  // nothing may rely on what is in it
    held.push_back(made);
    counter().counting = true;
    return made;
  }
  std::vector<std::string> names;
  std::vector<at::Tensor> held;
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

void check_close(const at::Tensor& got, const at::Tensor& expected, double tolerance, const std::string& what) {
  REQUIRE(got.sizes() == expected.sizes());
  const auto norm = expected.norm().item<double>();
  const auto error = (got.to(at::kDouble) - expected).norm().item<double>();
  INFO(what);
  CHECK(error <= tolerance * std::max(norm, 1.0));
}

/// One run: the op's surroundings, its tensors and what autograd says.
class Run {
 public:
  Run(const OpCase& op, const OpRun& run) : case_(op), run_(run), precision_(precision_named(run.precision)) {
    compute_ = scalar(precision_.compute);
    device_.kind = run.device;
    device_.compute_capability = run.device == DeviceKind::cuda ? 80 : 0;
    describe();
    rule_ = rule_for(context(), needs_);
    make_truth();
  }

  void forward() {
    for (const OpCase::Output& output : case_.outputs) {
      outputs_.push_back(at::full(output.sizes, NAN, output.is_fp32 ? at::kFloat : compute_));
    }
    if (rule_.in_place_input >= 0) outputs_[0] = inputs_[static_cast<std::size_t>(rule_.in_place_input)];
    if (rule_.outputs_inside) outputs_.assign(outputs_.size(), at::Tensor());
    OpCall call = make_call();
    call.inputs = inputs_;
    call.outputs = outputs_;
    counted([&] { op_functions(case_.kind, run_.device).forward(call); }, rule_.forward, "forward");
    outputs_ = call.outputs;
    if (case_.kind != OpKind::linear_cross_entropy || !needs_.any()) {
      check_close(outputs_[0], truth_output_, tolerance(), "output");
    }
  }

  std::vector<at::Tensor> backward() {
    OpCall call = make_call();
    place_saved(call);
    at::Tensor gradient = output_gradient_;
    if (gradient.defined()) call.output_gradient = &gradient;
    const std::vector<at::Tensor> input_before = place_input_gradients(call);
    const std::vector<at::Tensor> parameter_before = place_parameter_gradients(call);
    counted([&] { op_functions(case_.kind, run_.device).backward(call); }, rule_.backward, "backward");
    check_gradients("input", needs_.inputs, call.input_gradients, truth_inputs_, input_before);
    check_gradients("parameter", needs_.parameters, call.parameter_gradients, truth_parameters_, parameter_before);
    if (case_.kind == OpKind::linear_cross_entropy) check_close(outputs_[0], truth_output_, tolerance(), "loss");
    std::vector<at::Tensor> gradients = call.input_gradients;
    gradients.insert(gradients.end(), call.parameter_gradients.begin(), call.parameter_gradients.end());
    return gradients;
  }

  bool wants_backward() const { return needs_.any(); }

 private:
  OpContext context() const {
    return {.op = graph_.segments[0].ops[0],
            .segment = graph_.segments[0],
            .graph = graph_,
            .precision = precision_,
            .device = device_,
            .attention = run_.attention,
            .deterministic = run_.deterministic,
            .shape = case_.shape};
  }

  /// Those that are wanted, against the truth plus what was there before.
  void check_gradients(const char* what, const std::vector<bool>& wanted, const std::vector<at::Tensor>& got,
                       const std::vector<at::Tensor>& truth, const std::vector<at::Tensor>& before) const {
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!wanted[i]) continue;
      check_close(got[i], expected(truth[i], before[i]), tolerance(), fmt::format("gradient of {} {}", what, i));
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
    graph_.segments.push_back(segment);
  }

  void drop_unwanted() {
    if (run_.unwanted < 0) return;
    const auto unwanted = static_cast<std::size_t>(run_.unwanted);
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
    if (!is_loss) output_gradient_ = random_tensor(output.sizes().vec(), 99).to(compute_);
    output.backward(is_loss ? at::ones_like(output) : output_gradient_.to(at::kDouble));
    for (const at::Tensor& input : inputs) truth_inputs_.push_back(is_ids(input) ? at::Tensor() : input.grad());
    for (const at::Tensor& parameter : parameters) truth_parameters_.push_back(parameter.grad());
  }

  OpCall make_call() {
    facts_.loss_scale = case_.loss_scale;
    facts_.rope_cos = &case_.rope_cos;
    facts_.rope_sin = &case_.rope_sin;
    contexts_.push_back(context());
    temporaries_ = {};
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
    if (run_.mode == GradientMode::add) return random_tensor(case_.inputs[i].sizes().vec(), 5 + i).to(compute_);
    if (run_.mode == GradientMode::taken && source.from == saved) {
      return inputs_[static_cast<std::size_t>(source.index)];
    }
    const bool from_output = source.from == output_gradient || source.from == pass_through;
    if (run_.mode == GradientMode::taken && from_output) return *call.output_gradient;
    return rule_.gradients_inside ? at::Tensor() : at::full(case_.inputs[i].sizes(), NAN, compute_);
  }

  /// What a gradient held before; undefined where it is to be written afresh.
  std::vector<at::Tensor> place_input_gradients(OpCall& call) {
    std::vector<at::Tensor> before;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const at::Tensor target = needs_.inputs[i] ? input_target(call, i) : at::Tensor();
      call.input_gradients.push_back(target);
      const bool adds = needs_.inputs[i] && run_.mode == GradientMode::add;
      before.push_back(adds ? target.clone() : at::Tensor());
    }
    return before;
  }

  std::vector<at::Tensor> place_parameter_gradients(OpCall& call) {
    std::vector<at::Tensor> before;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      at::Tensor target, held;
      if (needs_.parameters[p]) {
        const at::ScalarType type = scalar(gradient_dtype(case_.kind, precision_));
        const std::vector<std::int64_t> sizes = parameters_[p].sizes().vec();
        target = run_.mode == GradientMode::add ? random_tensor(sizes, 50 + p).to(type) : at::full(sizes, NAN, type);
        if (run_.slices) target = sliced(target, case_.attributes.transposed_weight);
        if (run_.mode == GradientMode::add) held = target.clone();
      }
      call.parameter_gradients.push_back(target);
      before.push_back(held);
    }
    return before;
  }

  template <typename F>
  void counted(const F& kernel, const std::vector<Step>& steps, const char* what) {
    counter().seen.clear();
    counter().counting = true;
    kernel();
    counter().counting = false;
    if (run_.device != DeviceKind::cpu) return;
    std::vector<std::string> listed;
    std::vector<std::int64_t> bytes;
    for (const Step& step : steps) {
      listed.push_back(fmt::format("{} {}", step.name, step.bytes.n));
      bytes.push_back(step.bytes.n);
    }
    INFO(what);
    CHECK(temporaries_.names == listed);
    CHECK(counter().seen == bytes);
  }

  static at::Tensor expected(const at::Tensor& gradient, const at::Tensor& before) {
    return before.defined() ? gradient + before.to(at::kDouble) : gradient;
  }

  double tolerance() const { return run_.tolerance; }

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
  std::vector<at::Tensor> inputs_, outputs_, parameters_;
  at::Tensor truth_output_, output_gradient_;
  std::vector<at::Tensor> truth_inputs_, truth_parameters_;
};

}  // namespace

std::vector<at::Tensor> check_op(const OpCase& op, const OpRun& run) {
  counter();
  CAPTURE(run.precision);
  CAPTURE(static_cast<int>(run.device));
  CAPTURE(static_cast<int>(run.mode));
  CAPTURE(run.slices);
  CAPTURE(run.unwanted);
  Run one(op, run);
  one.forward();
  return one.wants_backward() ? one.backward() : std::vector<at::Tensor>();
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

std::vector<std::int64_t> allocations_of(const std::function<void()>& f) {
  counter().seen.clear();
  counter().counting = true;
  f();
  counter().counting = false;
  return counter().seen;
}

at::Tensor random_tensor(const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  at::Tensor values = at::empty(sizes, at::kFloat);
  for (std::int64_t i = 0; i < values.numel(); ++i) values.data_ptr<float>()[i] = normal(engine);
  return values;
}

at::Tensor random_ids(std::int64_t count, std::int64_t high, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  at::Tensor values = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    values.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(high));
  }
  return values;
}

}  // namespace vramfit::testing
