// Attention of transformers' GPT-2: one product makes queries, keys and values, which are seen with heads first.
#include <utility>

#include "program/pytorch/modelings/eager_heads.h"
#include "program/pytorch/modelings/transformers_gpt2.h"

namespace vramfit::eager {

/// softmax(scores).type(dtype), which autocast computes in fp32, and dropout.
Tensor Gpt2::probabilities(Tensor scores, Dtype dtype) {
  scores = torch_.softmax(scores, torch_.autocast() ? Dtype::f32 : scores.dtype);
  scores = torch_.cast(scores, dtype);
  return dropped(scores, gpt2_.dropout.attention);
}

/// eager_attention_forward
Gpt2::Attended Gpt2::attended_eagerly(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  const Gpt2Sizes& s = gpt2_.sizes;
  const std::int64_t heads = checked_mul(s.batch, s.heads);
  const EagerHeads sizes{.batch = s.batch, .sequence = s.sequence, .heads = s.heads, .head_dim = s.head_dim};
  Attended made;
  Tensor& weights = made.probabilities;
  weights = scaled_scores(torch_, q, k, sizes);
  weights = torch_.add(weights, mask);
  weights = probabilities(std::move(weights), v.dtype);
  Tensor out = torch_.batched_product(weights, torch_.folded_heads(v, s.heads, s.batch, false), heads,
                                      {s.sequence, s.head_dim, s.sequence});
  made.out = joined_heads(torch_, std::move(out), sizes);
  return made;
}

/// Products for each head, unlike PyTorch's kernels, give gradients with heads first, which are copied. That of the
/// keys comes from a product with transposed ones, in which a head's dims follow each other as in a row.
Gpt2::Attended Gpt2::attention(const Gpt2Block& l, const Tensor& x, const Tensor& mask) {
  const Gpt2Sizes& s = gpt2_.sizes;
  std::vector<Tensor> parts = torch_.parts_of(conv1d(x, l.c_attn, s.hidden, 3 * s.hidden), 3);
  if (is_eager_ && s.heads > 1) {
    for (const std::size_t part : {2, 0}) parts[part] = torch_.copied_in_backward(parts[part]);
  }
  const auto& [q, k, v] = std::tie(parts[0], parts[1], parts[2]);
  Attended made;
  if (is_eager_) {
    made = attended_eagerly(q, k, v, mask);
  } else {
    made.out = torch_.attention(q, k, v,
                                {.batch = s.batch,
                                 .sequence = s.sequence,
                                 .heads = s.heads,
                                 .head_dim = s.head_dim,
                                 .kv_heads = s.heads,
                                 .may_be_cudnn = may_be_cudnn_,
                                 .heads_first = false,
                                 .drops = gpt2_.dropout.attention > 0});
  }
  made.out = conv1d(made.out, l.attention_out, s.hidden, s.hidden);
  made.out = dropped(made.out, gpt2_.dropout.hidden);
  return made;
}

}  // namespace vramfit::eager
