// scaled_dot_product_attention where none of its kernels is for the sizes: composed of other calls
// (ATen/native/transformers/attention.cpp: _scaled_dot_product_attention_math).
#include <utility>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

/// Zeros where a query sees a key, and minus infinity elsewhere.
Tensor Torch::causal_numbers(std::int64_t sequence, Dtype dtype) {
  const std::int64_t scores = checked_mul(sequence, sequence);
  Tensor triangle;
  {
    const Tensor ones = computed("aten::ones", {}, temporary(scores, Dtype::u8, "ones"));
    triangle = computed("aten::tril", {reads(ones)}, temporary(scores, Dtype::u8, "lower triangle"));
  }
  const Tensor lowest = computed("aten::scalar_tensor", {}, temporary(1, dtype, "minus infinity")),
               zero = computed("aten::scalar_tensor", {}, temporary(1, dtype, "zero"));
  return computed("aten::where", {reads(triangle), reads(zero), reads(lowest)},
                  temporary(scores, dtype, "causal mask"));
}

/// 16 bits are computed in fp32, and the probabilities are returned, too, for nobody. Queries and keys are scaled
/// before they are multiplied. _safe_softmax looks for rows that see no key.
Tensor Torch::math_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& s) {
  const Tensor wide_q = cast(q, Dtype::f32), wide_k = cast(k, Dtype::f32), wide_v = cast(v, Dtype::f32);
  const std::int64_t batch = checked_mul(s.batch, s.heads), rows = checked_mul(batch, s.sequence);
  Tensor queries = scale(wide_q);
  const Tensor mask = causal_numbers(s.sequence, wide_q.dtype);
  const std::int64_t times = s.kv_heads == 0 ? 1 : s.heads / s.kv_heads;
  const Tensor keys = copied_heads(wide_k, times), values = copied_heads(wide_v, times);
  Tensor weights;
  {
    const Tensor scaled = scale(keys), folded = folded_heads(queries, s.heads, s.batch, s.heads_first);
    weights = batched_product(folded, scaled, batch, {s.sequence, s.sequence, s.head_dim});
  }
  heap_.run("aten::add_", {reads(mask), changes(weights)});
  {
    Tensor probabilities = softmax(weights, Dtype::f32);
    const Tensor hidden =
        computed("aten::isneginf", {reads(weights)}, temporary(weights.elements, Dtype::u8, "scores that are hidden"));
    const Tensor none = computed("aten::all", {reads(hidden)}, temporary(rows, Dtype::u8, "rows that see nothing"));
    const Tensor zero = temporary(1, wide_q.dtype, "zero");
    weights = std::move(probabilities);
  }
  const Tensor returned = cast(weights, q.dtype);
  Tensor out = batched_product(weights, values, batch, {s.sequence, s.head_dim, s.sequence});
  if (s.batch > 1 && s.heads > 1) out = copied_in_backward(out);
  return cast(out, q.dtype);
}

}  // namespace vramfit::eager
