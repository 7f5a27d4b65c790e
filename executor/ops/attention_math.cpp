#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh_backward.h>

#include <cmath>

#include "executor/ops/attention_torch.h"
#include "executor/ops/gemm_torch.h"
#include "program/ops/attention.h"

// Attention of ATen calls that make nothing but their result, for what the fused kernels refuse. One sequence, one head
// of every group and a block of queries at a time, so that a batched product's stride is the same from head to head and
// nothing is expanded. Backward recomputes the probabilities from lse, with delta = row sums of dout * out in place of
// the softmax's own sum (FlashAttention, Dao et al. 2022, algorithm 4).
namespace vramfit::kernels {

namespace {

/// One head's matrix of [heads, rows, columns], whose rows or columns are contiguous.
Matrix head_matrix(const at::Tensor& t, std::int64_t head) {
  Matrix m{.type = t.scalar_type(), .rows = t.size(1), .columns = t.size(2), .stride = t.stride(1)};
  m.data = static_cast<char*>(t.data_ptr()) + head * t.stride(0) * static_cast<std::int64_t>(t.element_size());
  m.transposed = t.stride(2) != 1;
  if (m.transposed) m.stride = t.stride(2);
  return m;
}

/// out = or += a b in fp32, for every head; a and b have one type.
void multiply_heads(const at::Tensor& a, const at::Tensor& b, at::Tensor out, bool add) {
  if (!out.is_cuda()) {
    for (std::int64_t h = 0; h < out.size(0); ++h) {
      multiply(head_matrix(a, h), head_matrix(b, h), head_matrix(out, h), {.add = add});
    }
  } else if (a.scalar_type() == at::kFloat) {
    add ? at::baddbmm_out(out, out, a, b) : at::bmm_out(out, a, b);
  } else {
    add ? at::baddbmm_out(out, out, a, b, at::kFloat) : at::bmm_out(out, a, b, at::kFloat);
  }
}

/// Queries [row, row + rows) of one head of every group in one sequence, and the keys that any of them sees.
struct Block {
  std::int64_t batch = 0, member = 0, row = 0, rows = 0, key = 0, keys = 0;
};

template <typename F>
void for_each_block(const AttentionSizes& s, std::int64_t batch, const F& f) {
  for (std::int64_t member = 0; member < s.group(); ++member) {
    for (std::int64_t row = 0; row < s.sequence; row += kMathAttentionRows) {
      const std::int64_t rows = std::min(kMathAttentionRows, s.sequence - row);
      const bool windowed = s.causal && s.window > 0;
      const std::int64_t key = windowed ? std::max<std::int64_t>(0, row - s.window + 1) : 0;
      f(Block{batch, member, row, rows, key, (s.causal ? row + rows : s.sequence) - key});
    }
  }
}

/// The block's queries, or their outputs or gradients, [kv heads, rows, D].
at::Tensor query_rows(const at::Tensor& t, const AttentionSizes& s, const Block& b) {
  const at::Tensor heads = t.view({s.batch, s.sequence, s.kv_heads, s.group(), s.head_dim});
  return heads.select(0, b.batch).select(2, b.member).narrow(0, b.row, b.rows).transpose(0, 1);
}

/// A sequence's keys or values, [S, kv heads, D].
at::Tensor keys_of(const at::Tensor& t, const AttentionSizes& s, std::int64_t batch) {
  return t.view({s.batch, s.sequence, s.kv_heads, s.head_dim}).select(0, batch);
}

/// Those the block sees, [kv heads, keys, D].
at::Tensor visible(const at::Tensor& keys, const Block& b) { return keys.narrow(0, b.key, b.keys).transpose(0, 1); }

/// The log-sum-exp of the block's queries, [kv heads, rows].
at::Tensor lse_of(const at::Tensor& lse, const AttentionSizes& s, const Block& b) {
  return lse.view({s.batch, s.kv_heads, s.group(), s.sequence})
      .select(0, b.batch)
      .select(1, b.member)
      .narrow(1, b.row, b.rows);
}

at::Tensor shaped(const at::Tensor& buffer, at::IntArrayRef sizes) {
  return buffer.narrow(0, 0, c10::multiply_integers(sizes)).view(sizes);
}

/// What both directions work in. The names are the rule's.
struct Work {
  explicit Work(OpCall& op_call) : call(op_call), s(op_call), block(math_block(op_call.context)) {}

  at::Tensor allocate(const char* name, std::int64_t elements, Dtype dtype = Dtype::f32) const {
    return call.temporaries.allocate(name, {elements}, dtype);
  }
  bool is_16_bit() const { return call.context.compute() != Dtype::f32; }

  /// -infinity above the diagonal, for queries and keys that are the same positions.
  void make_mask() {
    if (!s.causal) return;
    mask = allocate("mask", block.rows * block.rows).view({block.rows, block.rows});
    mask.fill_(-INFINITY).triu_(1);
  }

  /// Numbers that tensors are multiplied by, kept on the device: a C++ number becomes a tensor in every call.
  void make_factors() {
    const at::Tensor factors = allocate("factors", 3);
    const bool capped = s.softcap != 0;
    scale = factors.select(0, 0).fill_(s.scale);
    score_scale = factors.select(0, 1).fill_(capped ? s.scale / s.softcap : s.scale);
    cap = factors.select(0, 2).fill_(s.softcap);
  }

  /// `values` as a factor of a product: rounded to the compute dtype.
  at::Tensor factor(const at::Tensor& values) const {
    if (!is_16_bit()) return values;
    at::Tensor copy = shaped(rounded, values.sizes());
    return copy.copy_(values);
  }

  /// target [kv heads, rows, D] = or += a b.
  void store(const at::Tensor& a, const at::Tensor& b, const at::Tensor& target, bool add) const {
    if (!is_16_bit()) return multiply_heads(a, b, target, add);
    at::Tensor sum = shaped(rows, target.sizes());
    if (add) sum.copy_(target);
    multiply_heads(a, b, sum, add);
    target.copy_(sum);
  }

  OpCall& call;
  AttentionSizes s;
  MathBlock block;
  at::Tensor scores, mask, rounded, rows;
  at::Tensor scale, score_scale, cap;
};

/// scale q k^T, or with a softcap tanh(scale q k^T / cap).
at::Tensor scaled_scores(const Work& w, const Block& b) {
  const AttentionSizes& s = w.s;
  at::Tensor scores = shaped(w.scores, {s.kv_heads, b.rows, b.keys});
  const at::Tensor k = visible(keys_of(w.call.inputs[1], s, b.batch), b);
  multiply_heads(query_rows(w.call.inputs[0], s, b), k.transpose(1, 2), scores, false);
  scores.mul_(w.score_scale);
  return s.softcap == 0 ? scores : scores.tanh_();
}

/// Ends the softcap and hides the keys that a query must not see: those after it, and those before its window.
void cap_and_mask(const Work& w, const Block& b, const at::Tensor& scores) {
  const AttentionSizes& s = w.s;
  if (s.softcap != 0) scores.mul_(w.cap);
  if (!s.causal) return;
  const at::Tensor mask = w.mask.narrow(0, 0, b.rows).narrow(1, 0, b.rows);
  scores.narrow(2, b.row - b.key, b.rows).add_(mask);
  if (s.window == 0) return;
  // Query row + i sees keys from row - window + 1 + i on: the same triangle, turned, less what lies before key 0.
  const std::int64_t before = std::max<std::int64_t>(0, s.window - 1 - b.row);
  if (before >= b.rows) return;
  scores.narrow(2, 0, b.rows - before).add_(mask.t().narrow(1, before, b.rows - before));
}

void forward_block(const Work& w, const at::Tensor& buffer, const Block& b) {
  OpCall& call = w.call;
  const at::Tensor scores = scaled_scores(w, b);
  cap_and_mask(w, b, scores);
  at::Tensor log_probs = shaped(buffer, scores.sizes());
  at::_log_softmax_out(log_probs, scores, 2, false);
  // A query sees its own key, so there the difference is finite.
  at::Tensor lse = lse_of(call.outputs[1], w.s, b);
  at::sub_out(lse, scores.diagonal(b.row - b.key, 1, 2), log_probs.diagonal(b.row - b.key, 1, 2));
  w.store(w.factor(log_probs.exp_()), visible(keys_of(call.inputs[2], w.s, b.batch), b),
          query_rows(call.outputs[0], w.s, b), false);
}

/// What backward has besides.
struct Backward : Work {
  using Work::Work;
  at::Tensor d_scores, d_rows, delta, dk32, dv32;  // buffers
  at::Tensor dk, dv;                               // fp32 sums of the sequence, [S, kv heads, D]; undefined: unwanted
};

/// Where a sequence's sums over queries are made: in place, or in a buffer that end_sum rounds into its place.
at::Tensor begin_sum(const Backward& w, std::size_t input, std::int64_t batch, const at::Tensor& buffer) {
  if (!wants_input(w.call, input)) return {};
  const at::Tensor target = keys_of(w.call.input_gradients[input], w.s, batch);
  at::Tensor sum = w.is_16_bit() ? buffer.view(target.sizes()) : target;
  if (!adds_input(w.call, input)) return sum.zero_();
  return w.is_16_bit() ? sum.copy_(target) : sum;
}

void end_sum(const Backward& w, std::size_t input, std::int64_t batch, const at::Tensor& sum) {
  if (sum.defined() && w.is_16_bit()) keys_of(w.call.input_gradients[input], w.s, batch).copy_(sum);
}

at::Tensor delta_of(const Backward& w, const Block& b) {
  const at::Tensor out = query_rows(w.call.outputs[0], w.s, b);
  at::Tensor product = shaped(w.rows, out.sizes()), d_out = shaped(w.d_rows, out.sizes());
  at::Tensor delta = shaped(w.delta, {w.s.kv_heads, b.rows});
  product.copy_(out).mul_(d_out.copy_(query_rows(*w.call.output_gradient, w.s, b)));
  return at::sum_out(delta, product, 2);
}

void backward_block(const Backward& w, const Block& b) {
  const AttentionSizes& s = w.s;
  OpCall& call = w.call;
  const at::Tensor q = query_rows(call.inputs[0], s, b), d_out = query_rows(*call.output_gradient, s, b);
  const at::Tensor k = visible(keys_of(call.inputs[1], s, b.batch), b);
  const at::Tensor v = visible(keys_of(call.inputs[2], s, b.batch), b);
  at::Tensor p = scaled_scores(w, b);
  at::Tensor ds = shaped(w.d_scores, p.sizes());
  multiply_heads(d_out, v.transpose(1, 2), ds, false);
  ds.sub_(delta_of(w, b).unsqueeze(2));
  if (s.softcap != 0) at::tanh_backward_out(ds, ds, p);
  cap_and_mask(w, b, p);
  p.sub_(lse_of(call.outputs[1], s, b).unsqueeze(2)).exp_();
  ds.mul_(p).mul_(w.scale);
  if (w.dv.defined()) multiply_heads(w.factor(p).transpose(1, 2), d_out, visible(w.dv, b), true);
  const at::Tensor factor = w.factor(ds);
  if (w.dk.defined()) multiply_heads(factor.transpose(1, 2), q, visible(w.dk, b), true);
  if (wants_input(call, 0)) w.store(factor, k, query_rows(call.input_gradients[0], s, b), adds_input(call, 0));
}

}  // namespace

void attention_forward_math(OpCall& call) {
  Work w(call);
  w.scores = w.allocate("scores", w.block.elements());
  const at::Tensor log_probs = w.allocate("log_probabilities", w.block.elements());
  w.make_factors();
  w.make_mask();
  if (w.is_16_bit()) {
    w.rounded = w.allocate("rounded", w.block.elements(), call.context.compute());
    w.rows = w.allocate("rows", w.block.heads * w.block.rows * w.s.head_dim);
  }
  for (std::int64_t batch = 0; batch < w.s.batch; ++batch) {
    for_each_block(w.s, batch, [&](const Block& b) { forward_block(w, log_probs, b); });
  }
}

void attention_backward_math(OpCall& call) {
  Backward w(call);
  const std::int64_t rows = w.block.heads * w.block.rows, keys = w.s.sequence * w.s.kv_heads * w.s.head_dim;
  w.scores = w.allocate("scores", w.block.elements());
  w.d_scores = w.allocate("dscores", w.block.elements());
  w.make_factors();
  w.make_mask();
  if (w.is_16_bit()) w.rounded = w.allocate("rounded", w.block.elements(), call.context.compute());
  w.rows = w.allocate("rows", rows * w.s.head_dim);
  w.d_rows = w.allocate("drows", rows * w.s.head_dim);
  w.delta = w.allocate("delta", rows);
  if (w.is_16_bit()) {
    w.dk32 = w.allocate("dk32", keys);
    w.dv32 = w.allocate("dv32", keys);
  }
  for (std::int64_t batch = 0; batch < w.s.batch; ++batch) {
    w.dk = begin_sum(w, 1, batch, w.dk32);
    w.dv = begin_sum(w, 2, batch, w.dv32);
    for_each_block(w.s, batch, [&](const Block& b) { backward_block(w, b); });
    end_sum(w, 1, batch, w.dk);
    end_sum(w, 2, batch, w.dv);
  }
}

}  // namespace vramfit::kernels
