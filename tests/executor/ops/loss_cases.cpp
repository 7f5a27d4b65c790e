#include "tests/executor/ops/loss_cases_torch.h"

namespace vramfit::testing {

namespace {

OpCase loss_case(OpKind kind, std::int64_t rows, const LossTerms& terms, double scale) {
  OpCase op{.kind = kind, .shape = {1, rows}, .outputs = {{{1}, true}}};
  op.loss_scale = scale;
  op.attributes.softcap = terms.cap;
  op.attributes.label_smoothing = terms.smoothing;
  op.attributes.z_loss = terms.z;
  return op;
}

}  // namespace

at::Tensor labels_of(std::int64_t rows, std::int64_t vocabulary) {
  at::Tensor labels = random_ids(rows, vocabulary, 4);
  if (rows > 20) labels.narrow(0, 7, 9).fill_(-100);
  return labels;
}

at::Tensor loss_of(at::Tensor logits, const at::Tensor& labels, const LossTerms& terms) {
  if (terms.cap != 0) logits = at::tanh(logits / terms.cap) * terms.cap;
  const at::Tensor entropy = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100, terms.smoothing);
  const at::Tensor squares = at::logsumexp(logits, 1).square() * labels.ne(-100);
  return (entropy + terms.z * squares.sum()).view({1});
}

OpCase whole_loss(std::int64_t rows, std::int64_t vocabulary, const LossTerms& terms, double scale) {
  OpCase op = loss_case(OpKind::cross_entropy, rows, terms, scale);
  op.outputs.push_back({{rows}, true});
  const at::Tensor labels = labels_of(rows, vocabulary);
  op.inputs = {random_tensor({rows, vocabulary}, 1) * 3, labels};
  op.truth = [=](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>&) {
    return loss_of(in[0], labels, terms) * scale;
  };
  return op;
}

OpCase chunked_loss(std::int64_t chunks, const LossTerms& terms, double scale) {
  const std::int64_t rows = 29, width = 24, vocabulary = 150;
  OpCase op = loss_case(OpKind::linear_cross_entropy, rows, terms, scale);
  op.attributes.chunks = chunks;
  const at::Tensor labels = labels_of(rows, vocabulary);
  op.inputs = {random_tensor({rows, width}, 1), labels};
  op.parameters = {random_tensor({vocabulary, width}, 2) * 0.3, random_tensor({vocabulary}, 3)};
  op.truth = [=](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& p) {
    return loss_of(at::matmul(in[0], p[0].t()) + p[1], labels, terms) * scale;
  };
  return op;
}

}  // namespace vramfit::testing
