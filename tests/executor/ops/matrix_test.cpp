#include <doctest/doctest.h>

#include <tuple>

#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Rows, inputs, outputs.
using Sizes = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

OpCase linear_case(const Sizes& sizes, bool transposed, bool bias) {
  const auto [rows, inputs, outputs] = sizes;
  OpCase op{.kind = OpKind::linear, .shape = {1, rows}, .outputs = {{{rows, outputs}}}};
  op.attributes.transposed_weight = transposed;
  op.inputs = {random_tensor({rows, inputs}, 1)};
  op.parameters = {transposed ? random_tensor({inputs, outputs}, 2) : random_tensor({outputs, inputs}, 2)};
  if (bias) op.parameters.push_back(random_tensor({outputs}, 3));
  op.truth = [=](const Tensors& in, const Tensors& p) {
    const at::Tensor y = at::matmul(in[0], transposed ? p[0] : p[0].t());
    return bias ? y + p[1] : y;
  };
  return op;
}

}  // namespace

TEST_CASE("a linear reads and writes slices of packed matrices without a copy") {
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{1, 5, 7}, Sizes{64, 33, 1}, Sizes{3, 1, 40}, Sizes{130, 64, 96},
                             Sizes{600, 40, 72}, Sizes{9, 24, 2100}}) {
    CAPTURE(std::get<0>(sizes));
    CAPTURE(std::get<1>(sizes));
    CAPTURE(std::get<2>(sizes));
    for (const bool transposed : {false, true}) {
      for (const bool bias : {false, true}) check_op_in_all_ways(linear_case(sizes, transposed, bias));
    }
  }
}

TEST_CASE("head and cross entropy in chunks give the loss and all gradients in backward") {
  for (const std::int64_t chunks : {1, 3, 8}) {
    for (const double cap : {0.0, 2.0}) {
      const std::int64_t rows = 29, width = 24, vocabulary = 150;
      OpCase op{.kind = OpKind::linear_cross_entropy, .shape = {1, rows}, .outputs = {{{1}, true}}, .loss_scale = 0.3};
      op.attributes.chunks = chunks;
      op.attributes.softcap = cap;
      at::Tensor labels = random_ids(rows, vocabulary, 4);
      labels.narrow(0, 3, 5).fill_(-100);
      op.inputs = {random_tensor({rows, width}, 1), labels};
      op.parameters = {random_tensor({vocabulary, width}, 2) * 0.3, random_tensor({vocabulary}, 3)};
      op.truth = [=](const Tensors& in, const Tensors& p) {
        at::Tensor logits = at::matmul(in[0], p[0].t()) + p[1];
        if (cap != 0) logits = at::tanh(logits / cap) * cap;
        return (at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum) * 0.3).view({1});
      };
      check_op_in_all_ways(op);
      op.parameters.pop_back();
      op.truth = [=](const Tensors& in, const Tensors& p) {
        at::Tensor logits = at::matmul(in[0], p[0].t());
        if (cap != 0) logits = at::tanh(logits / cap) * cap;
        return (at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum) * 0.3).view({1});
      };
      check_op_in_all_ways(op);
    }
  }
}

TEST_CASE("cross entropy leaves out rows without a label and scales by the count of labels") {
  for (const std::int64_t rows : {1, 40, 300}) {
    const std::int64_t vocabulary = 97;
    OpCase op{.kind = OpKind::cross_entropy,
              .shape = {1, rows},
              .outputs = {{{1}, true}, {{rows}, true}},
              .loss_scale = 1.0 / 17};
    at::Tensor labels = random_ids(rows, vocabulary, 4);
    if (rows > 20) labels.narrow(0, 7, 9).fill_(-100);
    op.inputs = {random_tensor({rows, vocabulary}, 1) * 3, labels};
    op.truth = [=](const Tensors& in, const Tensors&) {
      return (at::cross_entropy_loss(in[0], labels, {}, at::Reduction::Sum) / 17).view({1});
    };
    check_op_in_all_ways(op);
  }
}

}  // namespace vramfit::testing
