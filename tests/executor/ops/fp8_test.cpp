// Linears under --precision fp8, CPU ranks' kernels and CUDA's (here on CPU tensors), against the recipe written with
// plain tensors: each factor scaled by its largest number, rounded to FP8 and back; gradients of outputs to e5m2.
#include <doctest/doctest.h>

#include <tuple>

#include "program/ops/fp8.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Rows, inputs, outputs.
using Sizes = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

constexpr double kRounding = 5e-3;  // of results to bf16, twice where they are added

at::Tensor rounded(const at::Tensor& values, at::ScalarType format, double largest) {
  const at::Tensor scale = (largest / values.abs().max().clamp_min(1e-12)).to(at::kFloat);
  const at::Tensor narrow = (values.to(at::kFloat) * scale).clamp(-largest, largest).to(format);
  return narrow.to(at::kDouble) / scale.to(at::kDouble);
}

/// e4m3's number in forward and in products; its gradient passes as it is.
at::Tensor factor(const at::Tensor& values) {
  return values + (rounded(values.detach(), at::kFloat8_e4m3fn, 448) - values.detach());
}

/// As torchao has it; `gradients` is the format of outputs' gradients.
OpCase fp8_case(const Sizes& sizes, bool bias, at::ScalarType gradients = at::kFloat8_e5m2) {
  const auto [rows, inputs, outputs] = sizes;
  OpCase op{.kind = OpKind::linear, .shape = {1, rows}, .outputs = {{{rows, outputs}}}};
  op.inputs = {random_tensor({rows, inputs}, 1) * 30};
  op.parameters = {random_tensor({outputs, inputs}, 2) * 0.02};
  if (bias) op.parameters.push_back(random_tensor({outputs}, 3));
  op.truth = [=](const Tensors& in, const Tensors& p) {
    const at::Tensor y = at::matmul(factor(in[0]), factor(p[0]).t());
    if (y.requires_grad()) {
      const double largest = gradients == at::kFloat8_e5m2 ? 57344 : 448;
      y.register_hook([=](const at::Tensor& gradient) { return rounded(gradient, gradients, largest); });
    }
    return bias ? y + p[1] : y;
  };
  return op;
}

void check_fp8(const OpCase& op) {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const GradientMode mode : {GradientMode::fresh, GradientMode::add}) {
      check_op(op, {.precision = "fp8",
                    .device = device,
                    .mode = mode,
                    .slices = mode == GradientMode::add,
                    .tolerance = kRounding});
    }
    for (int unwanted = 0; unwanted < 2; ++unwanted) {
      check_op(op, {.precision = "fp8", .device = device, .unwanted = unwanted, .tolerance = kRounding});
    }
  }
}

/// Whether a linear of these sizes multiplies in FP8.
bool is_fp8(const Sizes& sizes, const char* precision, SegmentRole role = SegmentRole::block, bool transposed = false) {
  const auto [rows, inputs, outputs] = sizes;
  Segment segment;
  segment.role = role;
  segment.values = {{"x", {kTokens, fixed(inputs)}}, {"y", {kTokens, fixed(outputs)}}};
  Op op;
  op.kind = OpKind::linear;
  op.inputs = {0};
  op.outputs = {1};
  op.attributes.transposed_weight = transposed;
  return multiplies_in_fp8(op, segment, precision_named(precision), {1, rows});
}

}  // namespace

TEST_CASE("a linear in fp8 multiplies factors that are scaled by their largest number and rounded, and no others") {
  for (const Sizes& sizes : {Sizes{16, 16, 16}, Sizes{48, 32, 64}, Sizes{1056, 32, 1040}, Sizes{32, 2064, 16}}) {
    CAPTURE(std::get<0>(sizes));
    for (const bool bias : {false, true}) check_fp8(fp8_case(sizes, bias));
  }
}

TEST_CASE("a factor of zeros gives zeros in fp8, not what 0/0 is") {
  OpCase op = fp8_case({16, 32, 16}, false);
  op.inputs[0].zero_();
  check_fp8(op);
}

TEST_CASE("formats that differ from the recipe's move a linear's results by more than these tests let pass") {
  const auto results = [](const OpCase& op) {
    const at::Tensor x = op.inputs[0].to(at::kDouble).requires_grad_(),
                     w = op.parameters[0].to(at::kDouble).requires_grad_();
    const at::Tensor y = op.truth({x}, {w});
    y.backward(random_tensor(y.sizes().vec(), 99).to(at::kDouble));
    return Tensors{y.detach(), x.grad(), w.grad()};
  };
  const OpCase op = fp8_case({48, 32, 64}, false);
  const OpCase other = fp8_case({48, 32, 64}, false, at::kFloat8_e4m3fn);
  OpCase exact = op;
  exact.truth = [](const Tensors& in, const Tensors& p) { return at::matmul(in[0], p[0].t()); };
  const Tensors right = results(op), with_e4m3 = results(other), unrounded = results(exact);
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double norm = right[i].norm().item<double>();
    CHECK((right[i] - unrounded[i]).norm().item<double>() > 4 * kRounding * norm);
    if (i > 0) CHECK((right[i] - with_e4m3[i]).norm().item<double>() > 4 * kRounding * norm);
  }
}

TEST_CASE("outside layers, and where a size is no multiple of 16, products stay in the compute dtype") {
  CHECK(is_fp8({32, 48, 16}, "fp8"));
  CHECK_FALSE(is_fp8({32, 48, 16}, "bf16-mixed"));
  for (const Sizes& sizes : {Sizes{31, 48, 16}, Sizes{32, 40, 16}, Sizes{32, 48, 24}})
    CHECK_FALSE(is_fp8(sizes, "fp8"));
  CHECK_FALSE(is_fp8({32, 48, 16}, "fp8", SegmentRole::head));
  CHECK_FALSE(is_fp8({32, 48, 16}, "fp8", SegmentRole::block, true));
  OpCase op = fp8_case({31, 48, 16}, false);
  op.truth = [](const Tensors& in, const Tensors& p) { return at::matmul(in[0], p[0].t()); };
  check_op(op, {.precision = "fp8", .tolerance = kRounding});
}

}  // namespace vramfit::testing
