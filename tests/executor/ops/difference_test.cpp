// The checks of kernels themselves: what they have to find, and what is rounding.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/executor/ops/difference_torch.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr double kTolerance = 1.5e-2;

at::Tensor small(std::uint64_t seed) { return (random_tensor({40, 5}, seed) * 1e-4).to(at::kDouble); }

/// The same values; their gradient is `factor` times theirs.
at::Tensor with_gradient_times(double factor, const at::Tensor& values) {
  return values.detach() + factor * (values - values.detach());
}

/// A loss that is a small part of a batch's: gradients of norm 0.003.
OpCase small_cross_entropy(double factor) {
  const std::int64_t rows = 40, vocabulary = 97;
  OpCase op{
      .kind = OpKind::cross_entropy, .shape = {1, rows}, .outputs = {{{1}, true}, {{rows}, true}}, .loss_scale = 5e-4};
  const at::Tensor labels = random_ids(rows, vocabulary, 4);
  op.inputs = {random_tensor({rows, vocabulary}, 1), labels};
  op.truth = [=](const Tensors& in, const Tensors&) {
    const at::Tensor logits = with_gradient_times(factor, in[0]);
    return (at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum) * 5e-4).view({1});
  };
  return op;
}

/// Weights and biases of gradients that are summed in 3 chunks.
OpCase small_head(double of_weight, double of_bias) {
  const std::int64_t rows = 29, width = 24, vocabulary = 150;
  OpCase op{.kind = OpKind::linear_cross_entropy, .shape = {1, rows}, .outputs = {{{1}, true}}, .loss_scale = 5e-4};
  op.attributes.chunks = 3;
  const at::Tensor labels = random_ids(rows, vocabulary, 4);
  op.inputs = {random_tensor({rows, width}, 1), labels};
  op.parameters = {random_tensor({vocabulary, width}, 2) * 0.3, random_tensor({vocabulary}, 3)};
  op.truth = [=](const Tensors& in, const Tensors& p) {
    const at::Tensor weight = with_gradient_times(of_weight, p[0]), bias = with_gradient_times(of_bias, p[1]);
    const at::Tensor logits = at::matmul(in[0], weight.t()) + bias;
    return (at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum) * 5e-4).view({1});
  };
  return op;
}

}  // namespace

TEST_CASE("a small result that is 1.5 times too large is found, and its rounding is not") {
  for (const at::ScalarType type : kTypes) {
    CAPTURE(c10::toString(type));
    const at::Tensor truth = small(1), before = small(2).to(type).to(at::kDouble);
    CHECK(difference(truth.to(type), {.truth = truth}, kTolerance).empty());
    CHECK_FALSE(difference((1.5 * truth).to(type), {.truth = truth}, kTolerance).empty());
    CHECK(difference((truth + before).to(type), {.truth = truth, .before = before}, kTolerance).empty());
    CHECK_FALSE(difference((1.5 * truth + before).to(type), {.truth = truth, .before = before}, kTolerance).empty());
    CHECK_FALSE(difference(truth.to(type), {.truth = truth, .before = before}, kTolerance).empty());
  }
}

TEST_CASE("what is no number, or of another size, is found") {
  at::Tensor got = small(1).to(at::kFloat);
  CHECK_FALSE(difference(got.narrow(0, 0, 3), {.truth = small(1)}, kTolerance).empty());
  got[3][2] = NAN;
  CHECK_FALSE(difference(got, {.truth = small(1)}, kTolerance).empty());
}

TEST_CASE("where the truth is exactly 0, so is the result, or it is what was there before") {
  for (const at::ScalarType type : kTypes) {
    at::Tensor truth = small(1), zeros = at::zeros_like(truth);
    truth[7].zero_();
    at::Tensor got = truth.to(type);
    CHECK(difference(got, {.truth = truth}, kTolerance).empty());
    CHECK(difference(zeros.to(type), {.truth = zeros}, kTolerance).empty());
    got[7][0] = 1e-7;  // far below the tolerance for the norm
    CHECK_FALSE(difference(got, {.truth = truth}, kTolerance).empty());
    const at::Tensor before = random_tensor({40, 5}, 3).to(type);
    at::Tensor moved = before.clone();
    CHECK(difference(moved, {.truth = zeros, .before = before.to(at::kDouble)}, kTolerance).empty());
    moved[0][0] += 0.25;
    CHECK_FALSE(difference(moved, {.truth = zeros, .before = before.to(at::kDouble)}, kTolerance).empty());
  }
}

TEST_CASE("terms that cancel leave their rounding, and no more") {
  const at::Tensor terms = random_tensor({40, 5}, 1), zeros = at::zeros({40, 5}, at::kDouble);
  const at::Tensor left = (terms * 3 + terms * 0.1F) - terms * 3.1F;
  const Expected expected{.truth = zeros, .cancelled = 6.2 * terms.to(at::kDouble).abs()};
  REQUIRE(left.norm().item<double>() > 0);
  CHECK(difference(left, expected, 2e-6).empty());
  CHECK_FALSE(difference(left, {.truth = zeros}, 2e-6).empty());
  CHECK_FALSE(difference(terms * 1e-6, expected, 2e-6).empty());
}

TEST_CASE("a sum of chunks that is rounded to bf16 after each passes, and one that lacks a chunk does not") {
  for (const int chunks : {1, 3, 8, 32}) {
    CAPTURE(chunks);
    const at::Tensor before = small(100).to(at::kBFloat16);
    at::Tensor sum = before.clone(), truth = at::zeros({40, 5}, at::kDouble);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const at::Tensor part = small(static_cast<std::uint64_t>(chunk));
      sum = (sum.to(at::kDouble) + part).to(at::kBFloat16);
      truth += part;
    }
    const Expected expected{.truth = truth, .before = before.to(at::kDouble), .additions = chunks};
    CHECK(difference(sum, expected, 0).empty());
    CHECK_FALSE(difference((sum.to(at::kDouble) - small(0)).to(at::kBFloat16), expected, 0).empty());
  }
}

TEST_CASE("an op whose small gradient is 1.5 times too small is found in every precision and mode") {
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed"}) {
    CAPTURE(precision);
    for (const GradientMode mode : {GradientMode::fresh, GradientMode::taken, GradientMode::add}) {
      const OpRun run{.precision = precision, .mode = mode, .tolerance = kTolerance};
      const auto found = [&](const OpCase& op) { return run_op(op, run).differences.size(); };
      CHECK(found(small_cross_entropy(1)) == 0);
      CHECK(found(small_cross_entropy(1.5)) == 1);
      CHECK(found(small_head(1, 1)) == 0);
      CHECK(found(small_head(1.5, 1)) == 1);
      CHECK(found(small_head(1, 1.5)) == 1);
    }
  }
}

}  // namespace vramfit::testing
