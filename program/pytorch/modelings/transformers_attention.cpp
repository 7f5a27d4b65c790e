// Attention of transformers' models (models/llama/modeling_llama.py, models/phi3/modeling_phi3.py).
#include <array>
#include <utility>

#include "program/pytorch/modelings/transformers.h"

namespace vramfit::eager {

/// As in axolotl's copy of the code, which makes all three before it shapes any.
std::array<Tensor, 3> Transformers::projected_together(const LlamaBlock& l, const Tensor& x) {
  const LlamaSizes& s = llama_.sizes;
  const std::int64_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  if (uses_axolotl_.qkv) {
    return lora_kernels_.queries_keys_values(
        x, {{{l.q, s.hidden, queries}, {l.k, s.hidden, keys}, {l.v, s.hidden, keys}}});
  }
  return {linear(x, l.q, s.hidden, queries), linear(x, l.k, s.hidden, keys), linear(x, l.v, s.hidden, keys)};
}

/// Queries and keys are seen with heads first from there on, so that their gradients have another layout, unless there
/// is one head. Gemma 3 makes all three before it norms any, and norms what is seen with heads first, which Liger's
/// norm copies, and gives so. Liger's rotation takes and gives tokens first, and its norm copies a gradient that isn't.
Transformers::QueriesKeysValues Transformers::projected(const LlamaBlock& l, const Tensor& x, bool is_masked) {
  const LlamaSizes& s = llama_.sizes;
  const bool is_normed_by_liger = uses_liger_.norm && l.q_norm >= 0, is_late = llama_.style.has_post_norms;
  const bool is_copied = is_normed_by_liger ? is_late : !uses_liger_.rope;
  std::array<Tensor, 3> together = makes_all_first_ ? projected_together(l, x) : std::array<Tensor, 3>{};
  const auto product = [&](std::size_t place, const LinearParameters& by, std::int64_t heads) {
    return makes_all_first_ ? std::move(together.at(place)) : linear(x, by, s.hidden, heads * s.head_dim);
  };
  const auto made = [&](std::size_t place, const LinearParameters& by, std::int64_t heads) {
    const Tensor y = product(place, by, heads);
    return heads > 1 && is_copied ? torch_.copied_in_backward(y) : y;
  };
  const auto normed = [&](const Tensor& y, int weight) {
    if (weight < 0) return y;
    const bool has_heads = y.elements > x.elements / s.hidden * s.head_dim;
    return norm(y, weight, s.head_dim,
                {.input = has_heads && is_late, .gradient = has_heads && (is_late || !uses_liger_.rope)});
  };
  QueriesKeysValues qkv;
  qkv.q = made(0, l.q, s.heads);
  if (!llama_.style.has_post_norms) qkv.q = normed(qkv.q, l.q_norm);
  qkv.k = made(1, l.k, s.kv_heads);
  if (!llama_.style.has_post_norms) qkv.k = normed(qkv.k, l.k_norm);
  qkv.v = product(2, l.v, s.kv_heads);
  if (has_values_heads_first(qkv.v, is_masked)) qkv.v = torch_.copied_in_backward(qkv.v);
  if (!llama_.style.has_post_norms) return qkv;
  qkv.q = normed(qkv.q, l.q_norm);
  qkv.k = normed(qkv.k, l.k_norm);
  return qkv;
}

/// Out of one matrix.
Transformers::QueriesKeysValues Transformers::sliced(const LlamaBlock& l, const Tensor& x, bool is_masked) {
  const LlamaSizes& s = llama_.sizes;
  const std::int64_t rows = x.elements / s.hidden, queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  const Tensor all = linear(x, l.qkv, s.hidden, queries + 2 * keys);
  Tensor q = torch_.part_of(all, rows * queries), k = torch_.part_of(all, rows * keys);
  Tensor v = torch_.part_of(all, rows * keys);
  if (s.heads > 1 && !uses_liger_.rope) q = torch_.copied_in_backward(q);
  if (s.kv_heads > 1 && !uses_liger_.rope) k = torch_.copied_in_backward(k);
  if (has_values_heads_first(v, is_masked)) v = torch_.copied_in_backward(v);
  return {.q = std::move(q), .k = std::move(k), .v = std::move(v)};
}

/// (x * cos) + (rotate_half(x) * sin)
Tensor Transformers::rotated(const Tensor& x, const Rotations& rotations) {
  const Tensor turned_by_cosines = torch_.multiply_by_constant(x, rotations.cosines);
  const Tensor turned_by_sines = torch_.multiply_by_constant(torch_.rotate_half(x), rotations.sines);
  return torch_.add(turned_by_cosines, turned_by_sines);
}

/// gpt-oss': by tables of half the width, each half apart, which are then joined.
Tensor Transformers::rotated_by_halves(const Tensor& x, const Rotations& rotations) {
  const std::vector<Tensor> halves = torch_.parts_of(x, 2);
  Tensor first, second;
  {
    const Tensor cosines = torch_.multiply_by_constant(halves[0], rotations.cosines);
    const Tensor sines = torch_.multiply_by_constant(halves[1], rotations.sines);
    first = torch_.minus(cosines, sines);
  }
  {
    const Tensor cosines = torch_.multiply_by_constant(halves[1], rotations.cosines);
    const Tensor sines = torch_.multiply_by_constant(halves[0], rotations.sines);
    second = torch_.add(cosines, sines);
  }
  return torch_.joined(first, second);
}

void Transformers::rotate(QueriesKeysValues& qkv, const Rotations& rotations) {
  const auto turned = [&](const Tensor& x) {
    return llama_.style.has_sinks ? rotated_by_halves(x, rotations) : rotated(x, rotations);
  };
  if (llama_.style.has_sinks) qkv.layout = Layout::heads_first;
  Tensor q = turned(qkv.q), k = turned(qkv.k);
  qkv.q = std::move(q);
  qkv.k = std::move(k);
}

/// Phi-3's form, which may leave dims of each head as they are, and joins them with the others in any case.
void Transformers::rotate_first_dims(QueriesKeysValues& qkv, const Rotations& rotations) {
  const auto part_of = [&](const Tensor& x, std::int64_t dims) {
    return torch_.part_of(x, x.elements / llama_.sizes.head_dim * dims);
  };
  const std::int64_t dims = llama_.sizes.rotated_dims, others = llama_.sizes.head_dim - dims;
  const Tensor q_turns = part_of(qkv.q, dims), q_stays = part_of(qkv.q, others);
  const Tensor k_turns = part_of(qkv.k, dims), k_stays = part_of(qkv.k, others);
  const auto joined = [&](const Tensor& turns, const Tensor& stays) {
    const Tensor turned = rotated(turns, rotations);
    return torch_.joined(turned, stays);
  };
  qkv.layout = Layout::heads_first;
  Tensor q = joined(q_turns, q_stays), k = joined(k_turns, k_stays);
  qkv.q = std::move(q);
  qkv.k = std::move(k);
}

/// By Liger, of packed ones in copies. What comes back has tokens first.
void Transformers::rotate_in_place(QueriesKeysValues& qkv, const Rotations& rotations, bool is_masked) {
  const bool are_heads_first = is_eager_ || kernel_of(qkv.q.dtype, is_masked) == AttentionKernel::math;
  const bool is_packed = llama_.style.is_packed;
  const bool are_normed_so = uses_liger_.norm && llama_.style.has_post_norms && llama_.blocks.front().q_norm >= 0;
  auto [q, k] = liger_.rotated(qkv.q, qkv.k, {rotations.cosines, rotations.sines},
                               {.queries = is_packed || (are_normed_so && llama_.sizes.heads > 1),
                                .keys = is_packed || (are_normed_so && llama_.sizes.kv_heads > 1),
                                .of_queries = are_heads_first && llama_.sizes.heads > 1,
                                .of_keys = has_values_heads_first(qkv.k, is_masked)});
  qkv.q = std::move(q);
  qkv.k = std::move(k);
}

AttentionShape Transformers::shape_of(Layout layout, bool is_masked) const {
  const LlamaSizes& s = llama_.sizes;
  return {.batch = s.batch,
          .sequence = s.sequence,
          .heads = s.heads,
          .head_dim = s.head_dim,
          .kv_heads = is_masked ? s.heads : s.kv_heads,
          .may_be_cudnn = may_be_cudnn_,
          .heads_first = layout == Layout::heads_first};
}

AttentionKernel Transformers::kernel_of(Dtype dtype, bool is_masked) const {
  if (is_flash_attn_) return AttentionKernel::flash;
  return torch_.attention_kernel(shape_of(Layout::tokens_first, is_masked), torch_.autocast().value_or(dtype),
                                 is_masked);
}

/// Whether the gradient of v has heads first, so that it is copied: what products and sums over heads make.
bool Transformers::has_values_heads_first(const Tensor& v, bool is_masked) const {
  if (llama_.sizes.kv_heads == 1) return false;
  const bool is_repeated = is_masked && llama_.sizes.heads != llama_.sizes.kv_heads;
  return is_eager_ || is_repeated || kernel_of(v.dtype, is_masked) == AttentionKernel::math;
}

/// By one of PyTorch's kernels. One that is passed a mask doesn't share keys and values
/// (integrations/sdpa_attention.py: use_gqa_in_sdpa).
Tensor Transformers::attended(const QueriesKeysValues& qkv, const Tensor& mask) {
  const bool is_masked = bool{mask.storage};
  Heads keys{.x = qkv.k, .layout = qkv.layout}, values{.x = qkv.v};
  if (is_masked) {
    keys = repeated(qkv.k, qkv.layout);
    values = repeated(qkv.v, Layout::tokens_first);
  }
  const AttentionShape shape = shape_of(qkv.layout, is_masked);
  Tensor out = torch_.attention(qkv.q, keys.x, values.x, shape, mask);
  // The library wants tokens first. Most kernels give what lies as queries do, and PyTorch's math always heads first.
  const AttentionKernel kernel = kernel_of(qkv.q.dtype, is_masked);
  const bool is_like_queries = kernel == AttentionKernel::flash || kernel == AttentionKernel::cudnn;
  const bool is_copied = kernel == AttentionKernel::math || (is_like_queries && shape.heads_first);
  return is_copied && shape.heads > 1 ? torch_.clone(out) : out;
}

Tensor Transformers::attended_by_flash_attn(const QueriesKeysValues& qkv, const Positions& positions) {
  const AttentionShape shape = shape_of(qkv.layout, false);
  return FlashAttn(torch_).attention({.q = qkv.q, .k = qkv.k, .v = qkv.v, .values_lie_apart = llama_.style.is_packed},
                                     shape, positions.ids, positions.documents);
}

Transformers::Attended Transformers::attention(const LlamaBlock& l, const Tensor& x, const Positions& positions) {
  const LlamaSizes& s = llama_.sizes;
  const bool is_masked = bool{positions.mask.storage};
  QueriesKeysValues qkv = llama_.style.is_packed ? sliced(l, x, is_masked) : projected(l, x, is_masked);
  if (uses_liger_.rope) {
    rotate_in_place(qkv, positions.rotations, is_masked);
  } else if (llama_.style.is_packed) {
    rotate_first_dims(qkv, positions.rotations);
  } else {
    rotate(qkv, positions.rotations);
  }
  Attended made;
  if (is_eager_) {
    made = attended_eagerly(l, qkv, positions.mask);
  } else if (is_flash_attn_) {
    made.out = attended_by_flash_attn(qkv, positions);
  } else {
    made.out = attended(qkv, positions.mask);
  }
  made.out = uses_axolotl_.o ? lora_kernels_.output(made.out, {l.o, s.heads * s.head_dim, s.hidden})
                             : linear(made.out, l.o, s.heads * s.head_dim, s.hidden);
  return made;
}

}  // namespace vramfit::eager
