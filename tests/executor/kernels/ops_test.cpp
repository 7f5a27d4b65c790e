// Ops by own kernels: outputs and gradients are those of CPU ranks, to the bit where nothing is added up over threads;
// and those of LibTorch's functions beside them.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/cross_entropy_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/op_row.h"
#include "tests/executor/kernels/gelu_bound_torch.h"
#include "tests/executor/kernels/kernel_place_torch.h"
#include "tests/executor/ops/loss_cases_torch.h"

namespace vramfit::testing {

namespace {

struct Size {
  std::int64_t rows, columns;
};
using Tensors = std::vector<at::Tensor>;
using Precisions = std::vector<std::pair<const char*, double>>;
constexpr double kLossScale = 5e-4, kExact = 2e-6;
const Precisions kPrecisions{{"fp32", kExact}, {"bf16-mixed", 1.5e-2}, {"fp16-mixed", 2e-3}}, kBfloat16{kPrecisions[1]};

/// The run where kernels are.
OpRun in_place(OpRun run, KernelSource kernels) {
  run.device = DeviceKind::cuda;
  run.kernels = kernels;
  run.place = kernel_device();
  run.multiprocessors = multiprocessors();
  return run;
}

/// LibTorch's functions round after each call.
void check_fallback(const OpCase& op, OpRun run) {
  if (op.kind == OpKind::rms_norm && kernel_device().is_cpu()) return;  // LibTorch has its gradient on GPUs alone
  if (run.tolerance > kExact) run.tolerance *= 2.5;
  CHECK(run_op(op, in_place(run, KernelSource::libtorch)).differences == std::vector<std::string>());
}

/// Those that are defined.
bool are_equal(const Tensors& a, const Tensors& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) {
    equal = a[i].defined() == b[i].defined() && (!a[i].defined() || at::equal(a[i], b[i]));
  }
  return equal;
}

/// Whether a GPU has functions of its own in it.
bool is_exact(const OpCase& op) {
  const Activation activation = op.attributes.activation;
  const bool is_gelu = activation == Activation::gelu_tanh || activation == Activation::gelu_erf;
  return kernel_device().is_cpu() || op.kind != OpKind::glu || !is_gelu;
}

void check_run(const OpCase& op, const OpRun& run) {
  CAPTURE(run.precision);
  CAPTURE(static_cast<int>(run.mode));
  CAPTURE(run.unwanted);
  const OpResult cpu = run_op(op, run);
  for (const bool backwards : {false, true}) {
    const PlacedKernels kernels(backwards);
    const OpResult own = run_op(op, in_place(run, KernelSource::vramfit));
    CHECK(own.differences == std::vector<std::string>());
    if (!is_exact(op)) {
      CHECK(gelu_apart(op, own, cpu) == "");
      continue;
    }
    CHECK(are_equal({own.output}, {cpu.output}));
    CHECK(are_equal(own.gradients, cpu.gradients));
  }
  check_fallback(op, run);
}

void check(const OpCase& op) {
  for (const auto& [precision, tolerance] : kPrecisions) {
    for (const GradientMode mode : {GradientMode::fresh, GradientMode::taken, GradientMode::add}) {
      check_run(op, {.precision = precision, .mode = mode, .tolerance = tolerance});
    }
  }
  for (int input = 0; input < static_cast<int>(op.inputs.size()); ++input) {
    check_run(op, {.mode = GradientMode::taken, .unwanted = input, .tolerance = kExact});
    check_run(op, {.mode = GradientMode::add, .unwanted = input, .tolerance = kExact});
  }
}

at::Tensor act(Activation activation, const at::Tensor& x) {
  if (activation == Activation::silu) return at::silu(x);
  if (activation == Activation::relu) return at::relu(x);
  return at::gelu(x, activation == Activation::gelu_tanh ? "tanh" : "none");
}

/// Against what PyTorch computes in double, and the same to the bit whichever thread comes first.
void check_order(const OpCase& op, const Precisions& precisions) {
  for (const auto& [precision, tolerance] : precisions) {
    for (const GradientMode mode : {GradientMode::fresh, GradientMode::taken, GradientMode::add}) {
      CAPTURE(precision);
      CAPTURE(static_cast<int>(mode));
      const OpRun run{.precision = precision, .mode = mode, .tolerance = tolerance};
      std::vector<OpResult> results;
      for (const bool backwards : {false, true}) {
        const PlacedKernels kernels(backwards);
        results.push_back(run_op(op, in_place(run, KernelSource::vramfit)));
        CHECK(results.back().differences == std::vector<std::string>());
      }
      CHECK(at::equal(results[0].output, results[1].output));
      CHECK(are_equal(results[0].gradients, results[1].gradients));
      check_fallback(op, run);
    }
  }
}

OpCase op_case(OpKind kind, std::int64_t rows, std::int64_t columns, int inputs) {
  OpCase op{.kind = kind, .shape = {1, rows}, .outputs = {{{rows, columns}}}};
  for (int i = 0; i < inputs; ++i) {
    op.inputs.push_back(random_tensor({rows, columns}, static_cast<std::uint64_t>(i) + 1) * 2);
  }
  return op;
}

OpCase gated_case(Activation activation, const Size& size) {
  OpCase op = op_case(OpKind::glu, size.rows, size.columns, 2);
  op.attributes.activation = activation;
  op.truth = [=](const Tensors& in, const Tensors&) { return act(activation, in[0]) * in[1]; };
  return op;
}

}  // namespace

TEST_CASE("a gated activation and its gradients are those of CPU ranks, over what was saved too") {
  for (const Activation activation :
       {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf, Activation::relu}) {
    CAPTURE(static_cast<int>(activation));
    check(gated_case(activation, {23, 129}));
  }
  for (const Size& size : cases_of_place<Size>({}, {{600, 14336}, {600, 14341}})) {
    const GradientMode mode = size.columns % 2 == 0 ? GradientMode::taken : GradientMode::add;
    const OpCase op = gated_case(Activation::silu, size);
    check_run(op, {.precision = "bf16-mixed", .mode = mode, .tolerance = kBfloat16[0].second});
  }
}

TEST_CASE("a gated activation leaves alone what lies beyond its elements") {
  const PlacedKernels kernels;
  constexpr std::int64_t kElements = 13, kThere = 32;
  const at::Tensor gate = placed(random_tensor({kThere}, 1)), up = placed(random_tensor({kThere}, 2));
  at::Tensor output = placed(at::full({kThere}, 7.0F)), of_gate = output.clone(), of_up = output.clone();
  const cuda::GatedUnit unit{.gate = gate.const_data_ptr(),
                             .up = up.const_data_ptr(),
                             .number = cuda::Number::f32,
                             .elements = kElements,
                             .activation = cuda::Activation::silu};
  check_launch(require_own_kernels().gate(unit, output.mutable_data_ptr(), nullptr));
  check_launch(require_own_kernels().gate_backward(unit,
                                                   {.output = up.const_data_ptr(),
                                                    .gate = of_gate.mutable_data_ptr(),
                                                    .up = of_up.mutable_data_ptr(),
                                                    .add_gate = false,
                                                    .add_up = false},
                                                   nullptr));
  for (const at::Tensor& tensor : {output, of_gate, of_up}) {
    CHECK(tensor.narrow(0, kElements, kThere - kElements).eq(7).all().item<bool>());
    CHECK(tensor.narrow(0, 0, kElements).ne(7).all().item<bool>());
  }
}

TEST_CASE("rotary embedding and its gradient are those of CPU ranks, in packs or not, of all or a part of a head") {
  struct Table {
    std::int64_t heads, half, dim;
    at::ScalarType type;
    std::int64_t sequence = 9;
  };
  const std::vector<Table> tables{
      {3, 8, 16, at::kFloat}, {3, 4, 12, at::kBFloat16}, {3, 3, 8, at::kHalf}, {4, 4, 9, at::kFloat}};
  const std::vector<Table> large{{32, 64, 128, at::kFloat, 1000}, {2, 4, 12, at::kFloat, 40'000}};
  for (const Table& table : cases_of_place(tables, large)) {
    const std::int64_t batch = 2, sequence = table.sequence, heads = table.heads, half = table.half, dim = table.dim;
    OpCase op = op_case(OpKind::rope, batch * sequence, heads * dim, 1);
    op.shape = {batch, sequence};
    op.attributes.heads = heads;
    op.attributes.head_dim = dim;
    const at::Tensor angle = random_tensor({sequence, half}, 3);
    op.rope_cos = {at::cos(angle).to(table.type)};
    op.rope_sin = {at::sin(angle).to(table.type)};
    op.truth = [=, tables = std::pair(op.rope_cos[0], op.rope_sin[0])](const Tensors& in, const Tensors&) {
      const at::Tensor x = in[0].view({batch, sequence, heads, dim});
      const at::Tensor cos = tables.first.to(at::kDouble).unsqueeze(1),
                       sin = tables.second.to(at::kDouble).unsqueeze(1);
      const at::Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
      return at::cat({a * cos - b * sin, b * cos + a * sin, x.narrow(3, 2 * half, dim - 2 * half)}, 3)
          .reshape({batch * sequence, heads * dim});
    };
    check(op);
  }
}

TEST_CASE("cross entropy and its gradient are PyTorch's, whatever the order of threads") {
  check_order(whole_loss(1, 97, {}, kLossScale), kPrecisions);
  check_order(whole_loss(40, 2048, {}, kLossScale), kPrecisions);
  check_order(whole_loss(40, 5003, {.smoothing = 0.1}, kLossScale), kPrecisions);
  check_order(whole_loss(300, 97, {.smoothing = 0.3, .z = 0.02}, kLossScale), kPrecisions);
  for (const Size& size : cases_of_place<Size>({}, {{300, 128'256}, {9000, 97}})) {
    check_order(whole_loss(size.rows, size.columns, {.smoothing = 0.1, .z = 0.001}, kLossScale), kBfloat16);
  }
}

TEST_CASE("so they are in chunks") {
  // Without a GPU, LibTorch's products of 16 bits have scratch of their own.
  const Precisions precisions = kernel_device().is_cpu() ? Precisions{kPrecisions.front()} : kPrecisions;
  check_order(chunked_loss(3, {.smoothing = 0.1}, kLossScale), precisions);
}

TEST_CASE("below a softcap the gradient is that of what was capped") {
  const PlacedKernels kernels;
  constexpr double kCap = 2, kScale = 0.25;
  const at::Tensor labels = labels_of(29, 150);
  const at::Tensor x = (random_tensor({29, 150}, 1).to(at::kDouble) * 3).requires_grad_();
  loss_of(x, labels, {.smoothing = 0.1, .cap = kCap}).mul(kScale).sum().backward();
  const at::Tensor capped = (at::tanh(x.detach() / kCap) * kCap).to(at::kFloat), logits = placed(capped.clone());
  const at::Tensor losses = placed(at::empty({29}));
  at::Tensor loss = placed(at::zeros({1}));
  const kernels::LogitRows rows{logits, placed(labels), placed(at::empty({29}))};
  Attributes attributes;
  attributes.label_smoothing = 0.1;
  const kernels::LossShape shape(attributes);
  kernels::cross_entropy_loss_own(rows, losses, {shape, kScale, loss});
  CHECK(at::allclose(loss.cpu().to(at::kDouble), loss_of(capped.to(at::kDouble), labels, {.smoothing = 0.1}) * kScale,
                     1e-6));
  kernels::cross_entropy_gradient_own(rows, {.target = logits, .shape = shape, .scale = kScale, .softcap = kCap});
  CHECK(at::allclose(logits.cpu().to(at::kDouble), x.grad(), 1e-5, 1e-6));
}

TEST_CASE("logits that aren't numbers, infinite ones, and labels of no column") {
  const PlacedKernels kernels;
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  at::Tensor logits = at::zeros({4, 9});
  logits[0].fill_(-kInfinite)[2] = 1;
  logits[1][8] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor there = placed(logits), labels = placed(at::tensor({2, 3, -100, 9}, at::kLong));
  at::Tensor lse = placed(at::zeros({4})), losses = placed(at::zeros({4})), loss = placed(at::zeros({1}));
  const cuda::LossRows rows{.logits = there.const_data_ptr(),
                            .number = cuda::Number::f32,
                            .labels = labels.const_data_ptr<std::int64_t>(),
                            .ignored = -100,
                            .lse = lse.mutable_data_ptr<float>(),
                            .rows = 4,
                            .columns = 9,
                            .smoothing = 0,
                            .z = 0};
  check_launch(require_own_kernels().cross_entropy(rows, losses.mutable_data_ptr<float>(), 1,
                                                   loss.mutable_data_ptr<float>(), nullptr));
  CHECK(lse[0].item<float>() == 1);
  CHECK(losses[0].item<float>() == 0);
  CHECK(losses[1].isnan().item<bool>());
  CHECK(losses[2].item<float>() == 0);
  CHECK(losses[3].isnan().item<bool>());
  CHECK(loss.isnan().item<bool>());
}

namespace {

OpCase norm_case(std::int64_t rows, std::int64_t groups, std::int64_t width, bool plus_one) {
  constexpr double kEps = 1e-5;
  OpCase op{
      .kind = OpKind::rms_norm, .shape = {1, rows}, .outputs = {{{rows, groups * width}}, {{rows, groups}, true}}};
  op.attributes.groups = groups;
  op.attributes.eps = kEps;
  op.attributes.weight_plus_one = plus_one;
  op.inputs = {random_tensor({rows, groups * width}, 1)};
  op.parameters = {random_tensor({width}, 2)};
  op.truth = [=](const Tensors& in, const Tensors& p) {
    const at::Tensor x = in[0].view({rows, groups, width});
    const at::Tensor y = x * at::rsqrt(x.pow(2).mean(2, true) + kEps) * (plus_one ? p[0] + 1 : p[0]);
    return y.view({rows, groups * width});
  };
  return op;
}

}  // namespace

TEST_CASE("an RMS norm and its gradients are autograd's, whatever the order of threads") {
  const Precisions some{kPrecisions[0], kPrecisions[1]}, wide = kBfloat16;
  check_order(norm_case(1, 1, 64, false), wide);
  check_order(norm_case(45, 1, 72, true), kPrecisions);   // a warp has a row
  check_order(norm_case(7, 3, 128, false), wide);         // heads of a row
  check_order(norm_case(6, 1, 70, false), some);          // not in whole packs
  check_order(norm_case(9, 1, 1040, true), some);         // a block has a row
  check_order(norm_case(5, 1, 8192 + 520, false), wide);  // longer than what a block keeps
  for (const Size& size : cases_of_place<Size>({}, {{4096, 4096}, {40'000, 64}, {4500, 1040}})) {
    check_order(norm_case(size.rows, 1, size.columns, false), wide);
  }
}

TEST_CASE("a gradient of an RMS norm that isn't wanted is left out") {
  const OpCase op = norm_case(20, 1, 40, false);
  for (const int unwanted : {0, 1}) {
    for (const GradientMode mode : {GradientMode::taken, GradientMode::add}) {
      const PlacedKernels kernels;
      const OpRun run{.mode = mode, .unwanted = unwanted, .tolerance = kExact};
      const OpResult result = run_op(op, in_place(run, KernelSource::vramfit));
      CHECK(result.differences == std::vector<std::string>());
    }
  }
}

TEST_CASE("a residual addition and the norm of its sum in one pass are to the bit what they are in two") {
  struct Row {
    std::int64_t rows, columns, gap;  // elements from a multiple of a pack to where tensors begin
  };
  const std::vector<Row> rows{{12, 96, 0}, {3, 3000, 0}, {3, 96, 1}, {2, 9000, 0}};
  for (const Row& row : cases_of_place(rows, {{4096, 4096, 0}, {40'000, 96, 0}, {5000, 1040, 3}})) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const bool backwards : {false, true}) {
        CAPTURE(row.columns);
        CAPTURE(type);
        const PlacedKernels kernels(backwards);
        const auto tensor = [&](std::uint64_t seed) {
          return placed(random_tensor({row.rows * row.columns + row.gap}, seed).to(type).slice(0, row.gap));
        };
        const at::Tensor residual = tensor(1), branch = tensor(2);
        const at::Tensor weight = placed(random_tensor({row.columns}, 3).to(type));
        const at::Tensor sum = branch + residual;
        const auto norm = [&](const at::Tensor& x, const void* add) {
          const at::Tensor y = at::empty_like(sum), rstd = placed(at::empty({row.rows}));
          check_launch(require_own_kernels().rms_norm({.x = x.mutable_data_ptr(),
                                                       .weight = weight.const_data_ptr(),
                                                       .number = number_of(type),
                                                       .rows = row.rows,
                                                       .columns = row.columns,
                                                       .eps = 1e-6F,
                                                       .plus = 0,
                                                       .rstd = rstd.mutable_data_ptr<float>()},
                                                      add, y.mutable_data_ptr(), nullptr));
          return Tensors{y, rstd};
        };
        const Tensors two = norm(sum, nullptr), one = norm(branch, residual.const_data_ptr());
        CHECK(at::equal(branch, sum));
        CHECK(are_equal(one, two));
      }
    }
  }
}

TEST_CASE("programs and the executor agree about which ops have kernels of the engine's own") {
  constexpr std::array kFunctions{
#define OP(name) &kernels::rows::name,
#include "model_specs/ops.def"
#undef OP
  };
  for (std::size_t kind = 0; kind < kFunctions.size(); ++kind) {
    CAPTURE(kind);
    const OpRow& row = op_row(static_cast<OpKind>(kind));
    CHECK(row.has_own_kernel == (kFunctions[kind]->own_cuda.forward != nullptr));
    CHECK(row.joins.has_value() == (kFunctions[kind]->own_cuda.joint_forward != nullptr));
  }
}

}  // namespace vramfit::testing
