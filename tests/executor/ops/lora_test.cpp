#include <doctest/doctest.h>

#include <cmath>

#include "executor/ops/random_mask_torch.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

struct LoraSizes {
  std::int64_t rows, inputs, outputs, rank;
};

/// What the op's dropout multiplies the input by, in the first micro-batch of a run without a seed.
at::Tensor mask_of(const LoraSizes& sizes, double dropout) {
  at::Tensor mask = at::ones({sizes.rows * sizes.inputs});
  if (dropout > 0) mask_on_cpu(mask, {.key = dropout_key(0, 0, "p"), .first = 0, .keep = 1 - dropout});
  return mask.view({sizes.rows, sizes.inputs}).to(at::kDouble);
}

OpCase adapter(const LoraSizes& sizes, double dropout) {
  OpCase op{.kind = OpKind::lora, .shape = {1, sizes.rows}};
  op.outputs = {{{sizes.rows, sizes.outputs}}, {{sizes.rows, sizes.rank}}};
  op.attributes.scale = 0.5;
  op.attributes.dropout = dropout;
  op.inputs = {random_tensor({sizes.rows, sizes.inputs}, 1), random_tensor({sizes.rows, sizes.outputs}, 2)};
  op.parameters = {random_tensor({sizes.rank, sizes.inputs}, 3), random_tensor({sizes.outputs, sizes.rank}, 4)};
  op.truth = [mask = mask_of(sizes, dropout)](const Tensors& in, const Tensors& p) {
    return in[1] + 0.5 * at::matmul(at::matmul(in[0] * mask, p[0].t()), p[1].t());
  };
  return op;
}

/// With the matrix whose rows have norms, lying transposed or not.
OpCase adapter_with_norms(const LoraSizes& sizes, bool transposed) {
  OpCase op = adapter(sizes, 0);
  op.outputs.push_back({{sizes.outputs}});
  op.attributes.transposed_weight = transposed;
  op.parameters.push_back(transposed ? random_tensor({sizes.inputs, sizes.outputs}, 5)
                                     : random_tensor({sizes.outputs, sizes.inputs}, 5));
  op.constants = {4};
  return op;
}

at::Tensor true_norms(const OpCase& op, at::ScalarType compute) {
  const auto rounded = [&](std::size_t p) { return op.parameters[p].to(compute).to(at::kDouble); };
  const at::Tensor matrix = op.attributes.transposed_weight ? rounded(2).t() : rounded(2);
  return at::linalg_vector_norm(matrix + 0.5 * at::matmul(rounded(1), rounded(0)), 2, {1});
}

/// Adapter and magnitude in one, with the norms that it has to find.
OpCase dropped_dora(const LoraSizes& sizes, double dropout, bool transposed) {
  OpCase op = adapter_with_norms(sizes, transposed);
  op.kind = OpKind::dropped_dora;
  op.attributes.dropout = dropout;
  op.outputs.push_back({{sizes.rows, sizes.outputs}});
  op.parameters.insert(op.parameters.begin() + 2, random_tensor({sizes.outputs}, 6).abs() + 1);
  op.constants = {5};
  op.truth = [mask = mask_of(sizes, dropout), transposed](const Tensors& in, const Tensors& p) {
    const at::Tensor matrix = transposed ? p[3].t() : p[3], kept = in[0] * mask;
    const at::Tensor change = 0.5 * at::matmul(p[1], p[0]);
    const at::Tensor factors = p[2] / at::linalg_vector_norm(matrix + change.detach(), 2, {1}).detach();
    return in[1] + (factors - 1) * at::matmul(kept, matrix.t()) + factors * at::matmul(kept, change.t());
  };
  return op;
}

/// Magnitudes and norms well apart from 0, as those of a matrix are.
OpCase magnitude(std::int64_t rows, std::int64_t columns, bool has_bias, bool is_taken_over) {
  OpCase op{.kind = OpKind::magnitude, .shape = {1, rows}};
  op.outputs = {{{rows, columns}}};
  op.inputs = {random_tensor({rows, columns}, 1), random_tensor({columns}, 2).abs() + 1};
  op.parameters = {random_tensor({columns}, 3).abs() + 1};
  op.constants = {1};
  if (has_bias) op.parameters.push_back(random_tensor({columns}, 4));
  if (has_bias) op.constants.push_back(3);
  op.is_taken_over = is_taken_over;
  op.truth = [has_bias](const Tensors& in, const Tensors& p) {
    const at::Tensor bias = has_bias ? p[1] : at::zeros({1}, at::kDouble);
    return (in[0] - bias) * p[0] / in[1] + bias;
  };
  return op;
}

}  // namespace

TEST_CASE("an adapter adds scale B A x to its linear's output, and its gradients agree with autograd") {
  for (const LoraSizes& sizes : {LoraSizes{37, 65, 48, 8}, LoraSizes{5, 3, 7, 1}, LoraSizes{130, 64, 33, 16}}) {
    check_op_in_all_ways(adapter(sizes, 0));
  }
}

TEST_CASE("an adapter's backward drops the elements that its forward dropped") {
  check_op_in_all_ways(adapter({37, 65, 48, 8}, 0.3));
  check_op_in_all_ways(adapter({9, 16, 8, 4}, 0.75));
}

TEST_CASE("norms are of the rows of the matrix and its adapter together, and add nothing to any gradient") {
  for (const bool transposed : {false, true}) {
    for (const LoraSizes& sizes : {LoraSizes{37, 65, 48, 8}, LoraSizes{5, 3, 7, 1}, LoraSizes{4, 600, 33, 16}}) {
      CAPTURE(transposed);
      const OpCase op = adapter_with_norms(sizes, transposed);
      check_op_in_all_ways(op);
      for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
        const at::Tensor norms = run_op(op, {.device = device, .slices = true, .tolerance = 2e-6}).others[1];
        CHECK(at::allclose(norms.to(at::kDouble), true_norms(op, at::kFloat), 1e-6));
        const OpRun narrow{.precision = "bf16-mixed", .device = device, .tolerance = 4e-2};
        CHECK(at::allclose(run_op(op, narrow).others[1].to(at::kDouble), true_norms(op, at::kBFloat16), 4.1e-3));
      }
    }
  }
}

TEST_CASE(
    "what is dropped for an adapter with magnitudes is dropped for its matrix, and gradients agree with autograd") {
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    check_op_in_all_ways(dropped_dora({37, 65, 48, 8}, 0.3, transposed));
    check_op_in_all_ways(dropped_dora({9, 16, 8, 4}, 0.75, transposed));
    check_op_in_all_ways(dropped_dora({5, 3, 7, 1}, 0.5, transposed));
  }
}

TEST_CASE(
    "a magnitude replaces norms of rows beside the bias, in place or not, and its gradients agree with autograd") {
  for (const bool is_taken_over : {false, true}) {
    for (const bool has_bias : {false, true}) {
      CAPTURE(is_taken_over);
      CAPTURE(has_bias);
      check_op_in_all_ways(magnitude(37, 65, has_bias, is_taken_over));
      check_op_in_all_ways(magnitude(5, 3, has_bias, is_taken_over));
    }
  }
}

TEST_CASE("a magnitude of 0 hides the rows that it scales: its gradient is 0 then, not NaN") {
  OpCase op = magnitude(9, 4, true, false);
  op.parameters[0].narrow(0, 1, 1).zero_();
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    const at::Tensor gradient = run_op(op, {.device = device, .tolerance = 2e-6}).gradients[2];
    CHECK(gradient[1].item<float>() == 0);
    CHECK(gradient.isfinite().all().item<bool>());
  }
}

TEST_CASE("dropout leaves the share of elements that it is asked for, and their mean") {
  const LoraSizes sizes{.rows = 400, .inputs = 250, .outputs = 1, .rank = 1};
  for (const double dropout : {0.05, 0.5}) {
    const at::Tensor mask = mask_of(sizes, dropout);
    const double elements = static_cast<double>(mask.numel());
    const double dropped = mask.eq(0).sum().item<double>() / elements;
    // Four deviations of a binomial share.
    CHECK(std::abs(dropped - dropout) < 4 * std::sqrt(dropout * (1 - dropout) / elements));
    CHECK(mask.max().item<double>() == doctest::Approx(1 / (1 - dropout)).epsilon(1e-6));
  }
}

TEST_CASE("masks differ between steps and between adapters") {
  CHECK(dropout_key(1, 2, "a") != dropout_key(1, 3, "a"));
  CHECK(dropout_key(1, 2, "a") != dropout_key(1, 2, "b"));
  CHECK(dropout_key(1, 2, "a") != dropout_key(2, 2, "a"));
}

}  // namespace vramfit::testing
