#include "executor/ops/attention_torch.h"

#include <cmath>

#include "executor/ops/gemm_torch.h"
#include "program/ops/attention.h"

// CPU: exact attention over blocks of queries, all in fp32. Backward recomputes the probabilities from lse and takes
// delta = row sums of dout * out in place of the softmax's own sum (FlashAttention, Dao et al. 2022, algorithm 4).
namespace vramfit::kernels {

namespace {

constexpr std::int64_t kQueryBlock = 128;  // as program/ops/attention.cpp counts the scores

/// One head of q, k, v or a gradient, as fp32 [S, D]: the tensor's own columns, or a copy of them.
Matrix head_of(const at::Tensor& tensor, const AttentionSizes& s, std::int64_t batch, std::int64_t head) {
  const Matrix all = matrix(tensor);
  Matrix m = row_range(all, batch * s.sequence, s.sequence);
  m.data = static_cast<char*>(m.data) + head * s.head_dim * static_cast<std::int64_t>(c10::elementSize(m.type));
  m.columns = s.head_dim;
  return m;
}

Matrix read_head(const Matrix& head, float* copy) {
  if (head.type == at::kFloat) return head;
  with_type(head.type, [&](auto zero) {
    using T = decltype(zero);
    parallel_rows(head.rows, head.columns, [&](std::int64_t row) {
      const T* from = static_cast<const T*>(head.data) + row * head.stride;
      for (std::int64_t c = 0; c < head.columns; ++c) copy[row * head.columns + c] = static_cast<float>(from[c]);
    });
  });
  return {.data = copy, .rows = head.rows, .columns = head.columns, .stride = head.columns};
}

/// Where a head's result is made: in place, or in a copy that write_head stores afterwards.
Matrix result_head(const Matrix& head, float* copy) {
  if (head.type == at::kFloat) return head;
  return {.data = copy, .rows = head.rows, .columns = head.columns, .stride = head.columns};
}

void clear(const Matrix& m) {
  for (std::int64_t row = 0; row < m.rows; ++row) {
    float* to = static_cast<float*>(m.data) + row * m.stride;
    std::fill(to, to + m.columns, 0.0F);
  }
}

void write_head(const Matrix& result, const Matrix& head, bool add) {
  if (head.type == at::kFloat) return;
  with_type(head.type, [&](auto zero) {
    using T = decltype(zero);
    parallel_rows(head.rows, head.columns, [&](std::int64_t row) {
      const float* from = static_cast<const float*>(result.data) + row * result.stride;
      T* to = static_cast<T*>(head.data) + row * head.stride;
      for (std::int64_t c = 0; c < head.columns; ++c) put(to[c], from[c], add);
    });
  });
}

/// Rows [row, row + rows) of queries against the keys [key, key + keys) that any of them sees.
struct Block {
  std::int64_t row = 0, rows = 0, key = 0, keys = 0;
};

/// The keys [first, last) that a query sees.
struct Span {
  std::int64_t first = 0, last = 0;
};

Span visible(const AttentionSizes& s, std::int64_t query) {
  if (!s.causal) return {0, s.sequence};
  return {s.window > 0 ? std::max<std::int64_t>(0, query - s.window + 1) : 0, query + 1};
}

Block block_at(const AttentionSizes& s, std::int64_t row) {
  const std::int64_t rows = std::min(kQueryBlock, s.sequence - row);
  const std::int64_t first = visible(s, row).first;
  return {row, rows, first, visible(s, row + rows - 1).last - first};
}

Matrix scratch(float* values, const Block& block) {
  return {.data = values, .rows = block.rows, .columns = block.keys, .stride = block.keys};
}

/// f(first, count) for each thread's share of `count` rows or keys of a block. The products in it run on that thread
/// alone: one start of the threads and not one a product.
template <typename F>
void for_shares(const AttentionSizes& s, const Block& block, std::int64_t count, const F& f) {
  constexpr std::int64_t kLeast = std::int64_t{1} << 18;  // multiplications that are worth a thread
  const std::int64_t worth = block.rows * block.keys * s.head_dim / kLeast;
  const std::int64_t shares = std::clamp<std::int64_t>(worth, 1, std::min<std::int64_t>(count, at::get_num_threads()));
  at::parallel_for(0, shares, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t share = begin; share < end; ++share) {
      const std::int64_t first = count * share / shares;
      f(first, count * (share + 1) / shares - first);
    }
  });
}

/// scores = scale q k^T, softcapped.
void make_scores(const AttentionSizes& s, const Matrix& q, const Matrix& k, const Matrix& scores) {
  multiply_f32(s.scale, q, transpose(k), 0.0F, scores);
  if (s.softcap == 0) return;
  auto* values = static_cast<float*>(scores.data);
  const float cap = s.softcap;
  parallel_elements(scores.rows * scores.columns, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = begin; e < end; ++e) values[e] = cap * std::tanh(values[e] / cap);
  });
}

/// Replaces a row of scores by probabilities, zero outside `span`; returns its log-sum-exp.
float softmax_row(float* scores, std::int64_t keys, Span span) {
  const float highest = row_maximum(span.last - span.first, [=](std::int64_t j) { return scores[span.first + j]; });
  std::fill(scores, scores + span.first, 0.0F);
  std::fill(scores + span.last, scores + keys, 0.0F);
  for (std::int64_t j = span.first; j < span.last; ++j) scores[j] = fast_exp(scores[j] - highest);
  const float sum = row_sum(span.last - span.first, [=](std::int64_t j) { return scores[span.first + j]; });
  const float inverse = 1.0F / sum;
  for (std::int64_t j = span.first; j < span.last; ++j) scores[j] *= inverse;
  return highest + std::log(sum);
}

Span within(const Span& span, const Block& block) { return {span.first - block.key, span.last - block.key}; }

void forward_blocks(OpCall& call) {
  const AttentionSizes s(call);
  const bool copies = call.context.compute() != Dtype::f32;
  const auto floats = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    return data<float>(call.temporaries.allocate(name, {rows, columns}, Dtype::f32));
  };
  const auto head_copy = [&](const char* name) { return copies ? floats(name, s.sequence, s.head_dim) : nullptr; };
  float* scores = floats("scores", std::min(s.sequence, kQueryBlock), s.sequence);
  float *q32 = head_copy("q32"), *k32 = head_copy("k32"), *v32 = head_copy("v32"), *out32 = head_copy("out32");
  auto* lse = data<float>(call.outputs[1]);
  for (std::int64_t pair = 0; pair < s.batch * s.heads; ++pair) {
    const std::int64_t batch = pair / s.heads, head = pair % s.heads, kv_head = head / s.group();
    const Matrix q = read_head(head_of(call.inputs[0], s, batch, head), q32);
    const Matrix k = read_head(head_of(call.inputs[1], s, batch, kv_head), k32);
    const Matrix v = read_head(head_of(call.inputs[2], s, batch, kv_head), v32);
    const Matrix stored = head_of(call.outputs[0], s, batch, head), out = result_head(stored, out32);
    for (std::int64_t row = 0; row < s.sequence; row += kQueryBlock) {
      const Block block = block_at(s, row);
      for_shares(s, block, block.rows, [&](std::int64_t first, std::int64_t count) {
        const Matrix p = row_range(scratch(scores, block), first, count);
        make_scores(s, row_range(q, row + first, count), row_range(k, block.key, block.keys), p);
        parallel_rows(count, block.keys, [&](std::int64_t r) {
          lse[pair * s.sequence + row + first + r] =
              softmax_row(scores + (first + r) * block.keys, block.keys, within(visible(s, row + first + r), block));
        });
        multiply_f32(1.0F, p, row_range(v, block.key, block.keys), 0.0F, row_range(out, row + first, count));
      });
    }
    write_head(out, stored, false);
  }
}

/// Everything backward keeps over the heads.
struct Backward {
  explicit Backward(OpCall& op_call) : call(op_call), s(op_call) {
    const auto floats = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      return data<float>(call.temporaries.allocate(name, {rows, columns}, Dtype::f32));
    };
    const std::int64_t rows = std::min(s.sequence, kQueryBlock);
    scores = floats("scores", rows, s.sequence);
    d_scores = floats("dscores", rows, s.sequence);
    delta = floats("delta", s.batch * s.heads, s.sequence);
    if (call.context.compute() == Dtype::f32) return;
    for (float** copy : {&q32, &k32, &v32, &dout32, &dq32, &dk32, &dv32}) {
      static constexpr const char* kNames[] = {"q32", "k32", "v32", "dout32", "dq32", "dk32", "dv32"};
      *copy = floats(kNames[next++], s.sequence, s.head_dim);
    }
  }
  OpCall& call;
  AttentionSizes s;
  std::size_t next = 0;
  float *scores = nullptr, *d_scores = nullptr, *delta = nullptr;
  float *q32 = nullptr, *k32 = nullptr, *v32 = nullptr, *dout32 = nullptr;
  float *dq32 = nullptr, *dk32 = nullptr, *dv32 = nullptr;
};

/// delta[b, h, i] = sum over D of out * dout.
void make_delta(const Backward& b) {
  with_type(b.call.outputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> out(b.call.outputs[0]), d_out(*b.call.output_gradient);
    parallel_rows(out.count, out.columns, [&](std::int64_t row) {
      const std::int64_t batch = row / b.s.sequence, i = row % b.s.sequence;
      for (std::int64_t head = 0; head < b.s.heads; ++head) {
        const T *o = out[row] + head * b.s.head_dim, *d = d_out[row] + head * b.s.head_dim;
        b.delta[(batch * b.s.heads + head) * b.s.sequence + i] =
            row_sum(b.s.head_dim, [=](std::int64_t c) { return static_cast<float>(o[c]) * static_cast<float>(d[c]); });
      }
    });
  });
}

void clear_outside(float* row, std::int64_t keys, Span span) {
  std::fill(row, row + span.first, 0.0F);
  std::fill(row + span.last, row + keys, 0.0F);
}

/// Statistics of a query.
struct RowStatistics {
  float lse = 0, delta = 0;
};

/// scores -> probabilities; d_scores = d probabilities -> d (q k^T).
void gradient_row(const AttentionSizes& s, float* p, float* dp, Span span, RowStatistics row) {
  const float scale = s.scale, cap = s.softcap;
  if (cap == 0) {
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t j = span.first; j < span.last; ++j) {
      p[j] = fast_exp(p[j] - row.lse);
      dp[j] = scale * p[j] * (dp[j] - row.delta);
    }
    return;
  }
  for (std::int64_t j = span.first; j < span.last; ++j) {
    const float t = p[j] / cap;
    p[j] = fast_exp(p[j] - row.lse);
    dp[j] = scale * p[j] * (dp[j] - row.delta) * (1.0F - t * t);
  }
}

/// The fp32 matrices of one head; dq, dk and dv are empty where nobody wants them.
struct Head {
  Matrix q, k, v, d_out, dq, dk, dv;
};

/// dv += p^T dout and dk += dp^T q of a block whose p and dp are in the scratch; each thread has keys of its own.
void add_key_gradients(const Backward& b, const Head& h, const Block& block) {
  const Matrix q = row_range(h.q, block.row, block.rows), d_out = row_range(h.d_out, block.row, block.rows);
  for_shares(b.s, block, block.keys, [&](std::int64_t first, std::int64_t count) {
    const auto add = [&](float* scores, const Matrix& factor, const Matrix& sum) {
      if (sum.data == nullptr) return;
      const Matrix keys = part(transpose(scratch(scores, block)), first, count, 0, block.rows);
      multiply_f32(1.0F, keys, factor, 1.0F, row_range(sum, block.key + first, count));
    };
    add(b.scores, d_out, h.dv);
    add(b.d_scores, q, h.dk);
  });
}

void backward_head(Backward& b, std::int64_t pair, const Head& h, bool add_dq) {
  const AttentionSizes& s = b.s;
  const auto* lse = data<float>(b.call.outputs[1]) + pair * s.sequence;
  const float* delta = b.delta + pair * s.sequence;
  for (std::int64_t row = 0; row < s.sequence; row += kQueryBlock) {
    const Block block = block_at(s, row);
    const Matrix k = row_range(h.k, block.key, block.keys), v = row_range(h.v, block.key, block.keys);
    for_shares(s, block, block.rows, [&](std::int64_t first, std::int64_t count) {
      const Matrix p = row_range(scratch(b.scores, block), first, count);
      const Matrix dp = row_range(scratch(b.d_scores, block), first, count);
      make_scores(s, row_range(h.q, row + first, count), k, p);
      multiply_f32(1.0F, row_range(h.d_out, row + first, count), transpose(v), 0.0F, dp);
      parallel_rows(count, block.keys, [&](std::int64_t r) {
        const std::int64_t query = row + first + r;
        const Span span = within(visible(s, query), block);
        float *p_row = b.scores + (first + r) * block.keys, *dp_row = b.d_scores + (first + r) * block.keys;
        clear_outside(p_row, block.keys, span);
        clear_outside(dp_row, block.keys, span);
        gradient_row(s, p_row, dp_row, span, {lse[query], delta[query]});
      });
      if (h.dq.data != nullptr) multiply_f32(1.0F, dp, k, add_dq ? 1.0F : 0.0F, row_range(h.dq, row + first, count));
    });
    add_key_gradients(b, h, block);
  }
}

/// The place of an input's gradient of one head, or none.
Matrix gradient_head(Backward& b, std::size_t input, std::int64_t batch, std::int64_t head) {
  return wants_input(b.call, input) ? head_of(b.call.input_gradients[input], b.s, batch, head) : Matrix{};
}

/// Sums start at zero unless they are made where something is to be added to.
Matrix sum_head(Backward& b, std::size_t input, const Matrix& stored, float* copy) {
  if (stored.data == nullptr) return {};
  const Matrix sum = result_head(stored, copy);
  if (stored.type != at::kFloat || !adds_input(b.call, input)) clear(sum);
  return sum;
}

void backward_kv_head(Backward& b, std::int64_t batch, std::int64_t kv_head) {
  const AttentionSizes& s = b.s;
  OpCall& call = b.call;
  Head h;
  h.k = read_head(head_of(call.inputs[1], s, batch, kv_head), b.k32);
  h.v = read_head(head_of(call.inputs[2], s, batch, kv_head), b.v32);
  const Matrix dk = gradient_head(b, 1, batch, kv_head), dv = gradient_head(b, 2, batch, kv_head);
  h.dk = sum_head(b, 1, dk, b.dk32);
  h.dv = sum_head(b, 2, dv, b.dv32);
  for (std::int64_t head = kv_head * s.group(); head < (kv_head + 1) * s.group(); ++head) {
    h.q = read_head(head_of(call.inputs[0], s, batch, head), b.q32);
    h.d_out = read_head(head_of(*call.output_gradient, s, batch, head), b.dout32);
    const Matrix dq = gradient_head(b, 0, batch, head);
    h.dq = dq.data == nullptr ? Matrix{} : result_head(dq, b.dq32);
    backward_head(b, batch * s.heads + head, h, dq.type == at::kFloat && adds_input(call, 0));
    if (dq.data != nullptr) write_head(h.dq, dq, adds_input(call, 0));
  }
  if (dk.data != nullptr) write_head(h.dk, dk, adds_input(call, 1));
  if (dv.data != nullptr) write_head(h.dv, dv, adds_input(call, 2));
}

void backward_blocks(OpCall& call) {
  Backward b(call);
  make_delta(b);
  for (std::int64_t batch = 0; batch < b.s.batch; ++batch) {
    for (std::int64_t kv_head = 0; kv_head < b.s.kv_heads; ++kv_head) backward_kv_head(b, batch, kv_head);
  }
}

bool takes_math(const OpCall& call) { return attention_path(call.context) == AttentionPath::math; }

void attention_forward_cpu(OpCall& call) { takes_math(call) ? attention_forward_math(call) : forward_blocks(call); }

void attention_backward_cpu(OpCall& call) { takes_math(call) ? attention_backward_math(call) : backward_blocks(call); }

}  // namespace

const DeviceFunctions rows::attention{.cpu = {attention_forward_cpu, attention_backward_cpu},
                                      .cuda = {attention_forward_cuda, attention_backward_cuda}};

}  // namespace vramfit::kernels
