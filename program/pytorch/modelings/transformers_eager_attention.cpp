// Attention as transformers' models write it themselves (eager_attention_forward of models/llama/modeling_llama.py and
// models/gemma2/modeling_gemma2.py): products for each head, and a softmax between them.
#include <utility>

#include "program/pytorch/modelings/transformers.h"

namespace vramfit::eager {

/// repeat_kv, for as many heads as queries have.
Transformers::Heads Transformers::repeated(const Tensor& x, Layout layout) {
  const LlamaSizes& s = llama_.sizes;
  if (s.heads == s.kv_heads) return {.x = x, .layout = layout};
  // One head is only seen as many.
  const Layout made = s.kv_heads == 1 ? Layout::tokens_first : Layout::heads_first;
  return {.x = torch_.repeat_heads(x, s.kv_heads, s.heads / s.kv_heads), .layout = made};
}

/// softmax(..., dtype=torch.float32).to(query.dtype)
Tensor Transformers::probabilities(const Tensor& scores, Dtype dtype) {
  return torch_.cast(torch_.softmax(scores, Dtype::f32), dtype);
}

/// gpt-oss': a head's sink is one score more, whose probability nobody gets. `locals`: what eager_attention_forward has
/// until it returns.
Tensor Transformers::probabilities_beside_sinks(const Tensor& scores, int sinks, Dtype dtype,
                                                std::vector<Tensor>& locals) {
  const std::int64_t width = llama_.sizes.sequence + 1;
  Tensor all = torch_.joined_with_sinks(scores, llama_.sizes.sequence, sinks, llama_.sizes.heads);
  all = torch_.minus_rows(all, torch_.largest_of_rows(all, width));
  const Tensor probabilities = torch_.softmax(all, all.dtype);
  locals = {all, probabilities};
  return torch_.cast(torch_.part_of(probabilities, scores.elements), dtype);
}

/// The probabilities, which the layer keeps until it returns, and what is made of them.
Transformers::Attended Transformers::attended_eagerly(const LlamaBlock& l, const QueriesKeysValues& qkv,
                                                      const Tensor& mask) {
  const LlamaSizes& s = llama_.sizes;
  const std::int64_t batch = checked_mul(s.batch, s.heads);
  const auto as_computed = [&](const Tensor& x) { return torch_.autocast() ? torch_.cast(x, *torch_.autocast()) : x; };
  const auto folded = [&](const Tensor& x, Layout layout) {
    return torch_.folded_heads(x, s.heads, s.batch, layout == Layout::heads_first);
  };
  // A conversion makes many heads of one that is only seen as many.
  const auto folded_after = [&](const Heads& heads, const Tensor& converted) {
    const bool is_made = s.kv_heads == 1 && converted.dtype != heads.x.dtype;
    return folded(converted, is_made ? Layout::heads_first : heads.layout);
  };
  const Heads keys = repeated(qkv.k, qkv.layout), values = repeated(qkv.v, Layout::tokens_first);
  Attended made;
  Tensor& weights = made.probabilities;
  std::vector<Tensor> locals;
  {
    Tensor product;
    {
      const Tensor k = as_computed(keys.x), q = as_computed(qkv.q);  // the last one first
      const Tensor queries = folded(q, qkv.layout), turned = folded_after(keys, k);
      product = torch_.batched_product(queries, turned, batch, {s.sequence, s.sequence, s.head_dim});
    }
    weights = torch_.scale(product);
  }
  if (llama_.style.caps_scores) {
    weights = torch_.divide(weights);
    weights = torch_.tanh(weights);
    weights = torch_.scale(weights);
  }
  weights = torch_.add(weights, mask);
  weights = llama_.style.has_sinks ? probabilities_beside_sinks(weights, l.sinks, qkv.v.dtype, locals)
                                   : probabilities(weights, qkv.q.dtype);
  Tensor out;
  {
    const Tensor v = as_computed(values.x), w = as_computed(weights);
    out = torch_.batched_product(w, folded_after(values, v), batch, {s.sequence, s.head_dim, s.sequence});
  }
  if (s.heads == 1) {
    made.out = std::move(out);
    return made;
  }
  if (s.batch > 1) out = torch_.copied_in_backward(out);
  made.out = torch_.clone(out);
  return made;
}

}  // namespace vramfit::eager
