// Label smoothing and z-loss against PyTorch's cross entropy, over whole logits and in chunks.
#include <doctest/doctest.h>

#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

struct Terms {
  double smoothing = 0, z = 0, cap = 0;
};

constexpr double kScale = 1.0 / 17;

/// As the engine gives it: summed over labelled rows and scaled.
at::Tensor loss_of(at::Tensor logits, const at::Tensor& labels, const Terms& terms) {
  if (terms.cap != 0) logits = at::tanh(logits / terms.cap) * terms.cap;
  const at::Tensor entropy = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100, terms.smoothing);
  const at::Tensor squares = at::logsumexp(logits, 1).square() * labels.ne(-100);
  return ((entropy + terms.z * squares.sum()) * kScale).view({1});
}

at::Tensor labels_of(std::int64_t rows, std::int64_t vocabulary) {
  at::Tensor labels = random_ids(rows, vocabulary, 4);
  if (rows > 20) labels.narrow(0, 7, 9).fill_(-100);
  return labels;
}

void check_whole(std::int64_t rows, const Terms& terms) {
  const std::int64_t vocabulary = 97;
  OpCase op{.kind = OpKind::cross_entropy, .shape = {1, rows}, .outputs = {{{1}, true}, {{rows}, true}}};
  op.loss_scale = kScale;
  op.attributes.label_smoothing = terms.smoothing;
  op.attributes.z_loss = terms.z;
  const at::Tensor labels = labels_of(rows, vocabulary);
  op.inputs = {random_tensor({rows, vocabulary}, 1) * 3, labels};
  op.truth = [=](const Tensors& in, const Tensors&) { return loss_of(in[0], labels, terms); };
  check_op_in_all_ways(op);
}

void check_chunks(std::int64_t chunks, const Terms& terms) {
  const std::int64_t rows = 29, width = 24, vocabulary = 150;
  OpCase op{.kind = OpKind::linear_cross_entropy, .shape = {1, rows}, .outputs = {{{1}, true}}};
  op.loss_scale = kScale;
  op.attributes.chunks = chunks;
  op.attributes.softcap = terms.cap;
  op.attributes.label_smoothing = terms.smoothing;
  op.attributes.z_loss = terms.z;
  const at::Tensor labels = labels_of(rows, vocabulary);
  op.inputs = {random_tensor({rows, width}, 1), labels};
  op.parameters = {random_tensor({vocabulary, width}, 2) * 0.3, random_tensor({vocabulary}, 3)};
  op.truth = [=](const Tensors& in, const Tensors& p) {
    return loss_of(at::matmul(in[0], p[0].t()) + p[1], labels, terms);
  };
  check_op_in_all_ways(op);
}

}  // namespace

TEST_CASE("label smoothing and z-loss are PyTorch's cross entropy and PaLM's square, of labelled rows alone") {
  for (const std::int64_t rows : {1, 40, 300}) {
    for (const Terms& terms :
         {Terms{.smoothing = 0.1}, Terms{.z = 0.01}, Terms{.smoothing = 0.3, .z = 0.02}, Terms{.smoothing = 1}}) {
      CAPTURE(rows);
      CAPTURE(terms.smoothing);
      CAPTURE(terms.z);
      check_whole(rows, terms);
    }
  }
}

TEST_CASE("so they are in chunks, and below a softcap") {
  for (const std::int64_t chunks : {1, 3}) {
    for (const Terms& terms : {Terms{.smoothing = 0.1}, Terms{.z = 0.01}, Terms{.smoothing = 0.3, .z = 0.02},
                               Terms{.smoothing = 0.3, .z = 0.02, .cap = 2}}) {
      CAPTURE(chunks);
      CAPTURE(terms.smoothing);
      CAPTURE(terms.z);
      CAPTURE(terms.cap);
      check_chunks(chunks, terms);
    }
  }
}

}  // namespace vramfit::testing
