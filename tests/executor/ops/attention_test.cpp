#include <doctest/doctest.h>

#include <cmath>

#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

struct Form {
  std::int64_t batch, sequence, heads, kv_heads, dim;
  bool causal = true;
  std::int64_t window = 0;
  double softcap = 0;
};

struct Heads {
  at::Tensor q, k, v;  // [batch, heads, sequence, dim]: keys and values repeated for each head that reads them
};

at::Tensor by_head(const Form& f, const at::Tensor& rows, std::int64_t count) {
  return rows.view({f.batch, f.sequence, count, f.dim}).transpose(1, 2);
}

Heads split(const Form& f, const Tensors& in) {
  const std::int64_t group = f.heads / f.kv_heads;
  return {by_head(f, in[0], f.heads), by_head(f, in[1], f.kv_heads).repeat_interleave(group, 1),
          by_head(f, in[2], f.kv_heads).repeat_interleave(group, 1)};
}

at::Tensor probabilities(const Form& f, const Heads& h) {
  at::Tensor scores = at::matmul(h.q, h.k.transpose(2, 3)) / std::sqrt(static_cast<double>(f.dim));
  if (f.softcap != 0) scores = at::tanh(scores / f.softcap) * f.softcap;
  const at::Tensor position = at::arange(f.sequence);
  const at::Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
  at::Tensor hidden = at::zeros({f.sequence, f.sequence}, at::kBool);
  if (f.causal) hidden = distance < 0;
  if (f.window > 0) hidden = hidden.logical_or(distance >= f.window);
  return at::softmax(scores.masked_fill(hidden, -INFINITY), -1);
}

at::Tensor truth(const Form& f, const Tensors& in) {
  const Heads h = split(f, in);
  return at::matmul(probabilities(f, h), h.v).transpose(1, 2).reshape({f.batch * f.sequence, f.heads * f.dim});
}

/// The gradient of a score is p * (dO.v - dO.out): two sums of `dim` products, equal where a query sees one key alone.
Tensors cancelled_in_scores(const Form& f, const Tensors& in, const at::Tensor& output_gradient) {
  const Heads h = split(f, {in[0].detach(), in[1].detach(), in[2].detach()});
  const at::Tensor p = probabilities(f, h), d_out = by_head(f, output_gradient, f.heads).abs();
  const at::Tensor of_keys = at::matmul(d_out, h.v.abs().transpose(2, 3));
  const at::Tensor of_output = (d_out * at::matmul(p, h.v).abs()).sum(-1, true);
  const at::Tensor scores = p * (of_keys + of_output) / std::sqrt(static_cast<double>(f.dim));
  const at::Tensor q = at::matmul(scores, h.k.abs()), each_k = at::matmul(scores.transpose(2, 3), h.q.abs());
  const at::Tensor k = each_k.view({f.batch, f.kv_heads, f.heads / f.kv_heads, f.sequence, f.dim}).sum(2);
  return {q.transpose(1, 2).reshape(in[0].sizes()), k.transpose(1, 2).reshape(in[1].sizes()), {}};
}

OpCase attention_case(const Form& f) {
  const std::int64_t rows = f.batch * f.sequence;
  OpCase op{.kind = OpKind::attention,
            .shape = {f.batch, f.sequence},
            .outputs = {{{rows, f.heads * f.dim}}, {{f.batch * f.heads, f.sequence}, true}}};
  op.attributes.heads = f.heads;
  op.attributes.kv_heads = f.kv_heads;
  op.attributes.head_dim = f.dim;
  op.attributes.scale = 1 / std::sqrt(static_cast<double>(f.dim));
  op.attributes.causal = f.causal;
  op.attributes.window = f.window;
  op.attributes.softcap = f.softcap;
  op.inputs = {random_tensor({rows, f.heads * f.dim}, 1), random_tensor({rows, f.kv_heads * f.dim}, 2),
               random_tensor({rows, f.kv_heads * f.dim}, 3)};
  op.truth = [f](const Tensors& in, const Tensors&) { return truth(f, in); };
  op.cancelled = [f](const Tensors& in, const at::Tensor& output_gradient) {
    return cancelled_in_scores(f, in, output_gradient);
  };
  return op;
}

}  // namespace

TEST_CASE("attention agrees with autograd for grouped heads, windows, softcaps and both directions") {
  for (const Form& f :
       {Form{1, 1, 1, 1, 8}, Form{2, 37, 4, 2, 16}, Form{1, 300, 6, 2, 20}, Form{2, 64, 2, 2, 8, false},
        Form{1, 290, 2, 1, 12, true, 50}, Form{1, 260, 2, 2, 8, true, 200}, Form{2, 150, 4, 1, 8, true, 0, 1.5},
        Form{1, 140, 2, 2, 8, true, 30, 1.5}, Form{1, 129, 3, 3, 7, false}, Form{1, 20, 2, 1, 8, true, 1}}) {
    CAPTURE(f.sequence);
    CAPTURE(f.window);
    CAPTURE(f.softcap);
    check_op_in_all_ways(attention_case(f), false);
  }
}

// Blocks of 256 queries: one, several, the last one short; windows narrower and wider than a block.
TEST_CASE("attention composed of products agrees with autograd on any device and allocates what its rule lists") {
  for (const Form& f :
       {Form{1, 1, 1, 1, 8}, Form{2, 37, 4, 2, 16}, Form{1, 300, 6, 2, 20}, Form{2, 64, 2, 2, 8, false},
        Form{1, 290, 2, 1, 12, true, 50}, Form{1, 600, 2, 2, 8, true, 300}, Form{1, 530, 2, 1, 8, true, 257},
        Form{2, 150, 4, 1, 8, true, 0, 1.5}, Form{1, 270, 2, 2, 8, true, 30, 1.5}, Form{1, 257, 3, 3, 7, false},
        Form{1, 20, 2, 1, 8, true, 1}, Form{1, 256, 2, 2, 8, true, 256}, Form{1, 20, 2, 2, 8, true, 40}}) {
    CAPTURE(f.sequence);
    CAPTURE(f.window);
    CAPTURE(f.softcap);
    check_op_in_all_ways(attention_case(f), true, Attention::math);
  }
}

TEST_CASE("both ways of attention on CPU give the same output to rounding") {
  const OpCase op = attention_case({2, 70, 4, 2, 16, true, 20, 2.0});
  const auto blocks = check_op(op, {.tolerance = 2e-6});
  const auto math = check_op(op, {.tolerance = 2e-6, .attention = Attention::math});
  REQUIRE(blocks.size() == math.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CHECK((blocks[i] - math[i]).norm().item<double>() <= 2e-6 * blocks[i].norm().item<double>());
  }
}

}  // namespace vramfit::testing
