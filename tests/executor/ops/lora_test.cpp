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
