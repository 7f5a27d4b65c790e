// Attention of transformers' BERT, in both directions.
#include <utility>

#include "program/pytorch/modelings/eager_heads.h"
#include "program/pytorch/modelings/transformers_bert.h"

namespace vramfit::eager {

/// eager_attention_forward. Autocast computes softmax in fp32, and leaves its result so.
Bert::Attended Bert::attended_eagerly(const Tensor& q, const Tensor& k, const Tensor& v) {
  const BertSizes& s = bert_.sizes;
  const std::int64_t heads = checked_mul(s.batch, s.heads);
  const EagerHeads sizes{.batch = s.batch, .sequence = s.sequence, .heads = s.heads, .head_dim = s.head_dim};
  Attended made;
  Tensor& weights = made.probabilities;
  weights = scaled_scores(torch_, q, k, sizes);
  weights = torch_.softmax(weights, torch_.autocast() ? Dtype::f32 : weights.dtype);
  weights = dropped(weights, bert_.dropout.attention);
  Tensor out;
  {
    const Tensor factors = torch_.autocast() ? torch_.cast(weights, *torch_.autocast()) : weights;
    out = torch_.batched_product(factors, torch_.folded_heads(v, s.heads, s.batch, false), heads,
                                 {s.sequence, s.head_dim, s.sequence});
  }
  made.out = joined_heads(torch_, std::move(out), sizes);
  return made;
}

/// Products for each head, unlike PyTorch's kernels, give gradients with heads first, which are copied. That of the
/// keys comes from a product with transposed ones, in which a head's dims follow each other as in a row: only rows of
/// different sequences have to be put together.
Bert::Attended Bert::attention(const BertBlock& l, const Tensor& x) {
  const BertSizes& s = bert_.sizes;
  const auto made_by = [&](const LinearParameters& by, bool is_copied) {
    Tensor y = linear(x, by, s.hidden, s.hidden);
    return is_copied ? torch_.copied_in_backward(y) : y;
  };
  const Tensor q = made_by(l.query, is_eager_ && s.heads > 1);
  const Tensor k = made_by(l.key, is_eager_ && s.batch > 1);
  const Tensor v = made_by(l.value, is_eager_ && s.heads > 1);
  if (is_eager_) return attended_eagerly(q, k, v);
  Attended made;
  made.out = torch_.attention(q, k, v,
                              {.batch = s.batch,
                               .sequence = s.sequence,
                               .heads = s.heads,
                               .head_dim = s.head_dim,
                               .kv_heads = s.heads,
                               .may_be_cudnn = may_be_cudnn_,
                               .heads_first = false,
                               .drops = bert_.dropout.attention > 0,
                               .causal = false});
  return made;
}

}  // namespace vramfit::eager
