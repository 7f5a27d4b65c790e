#include "program/pytorch/modelings/torchtitan.h"

#include <algorithm>
#include <utility>

namespace vramfit::eager {

Torchtitan::Torchtitan(const Graph& graph, const Job& job, Torch& torch)
    : torch_(torch),
      compute_(job.precision.compute),
      is_of_2024_(job.modeling == Modeling::torchtitan),
      may_be_cudnn_(job.attention == Attention::automatic || job.attention == Attention::cudnn),
      llama_(llama_graph(graph, job)) {
  require_llama(job);
  for (const LlamaBlock& b : llama_.blocks) {
    if (b.q_norm >= 0) refuse_model(job, "a model with norms of queries and keys");
    for (const LinearParameters& linear : {b.q, b.k, b.v, b.o, b.gate, b.up, b.down}) {
      if (linear.bias >= 0) refuse_model(job, "a model with biases");
    }
  }
  if (llama_.embedding == llama_.output) refuse_model(job, "tied embeddings");
}

void Torchtitan::require_llama(const Job& job) const {
  const LlamaStyle& style = llama_.style;
  if (style.is_packed) refuse_model(job, "packed matrices");
  if (style.has_experts) refuse_model(job, "experts");
  const bool is_gemma = style.adds_one_to_norms || style.scales_embedding || style.has_post_norms;
  if (is_gemma || style.multiplies || style.caps_scores || style.caps_logits ||
      llama_.sizes.rotated_dims != llama_.sizes.head_dim) {
    refuse_model(job, "a model built differently from Llama");
  }
  const bool has_windows = std::ranges::any_of(llama_.blocks, [](const LlamaBlock& b) { return b.window != 0; });
  if (has_windows) refuse_model(job, "sliding windows");
}

std::vector<Module> Torchtitan::modules() const {
  std::vector<Module> modules{{"tok_embeddings", {llama_.embedding}}};
  for (const LlamaBlock& b : llama_.blocks) {
    modules.push_back({b.name,
                       {b.q.weight, b.k.weight, b.v.weight, b.o.weight, b.gate.weight, b.down.weight, b.up.weight,
                        b.attention_norm, b.ffn_norm}});
  }
  modules.push_back({"output", {llama_.norm, llama_.output}});
  return modules;
}

void Torchtitan::load() {
  const Scope scope(torch_.heap(), "rotations");
  const auto make = [&](std::int64_t elements, Dtype dtype, const char* what) {
    return torch_.heap().make(elements, dtype, Category::workspace, what);
  };
  const std::int64_t pairs = llama_.sizes.head_dim / 2;
  const std::int64_t angles = checked_mul(llama_.sizes.sequence, pairs);
  const Tensor empty = make(2 * angles, Dtype::f32, "empty table");
  const Tensor exponents = torch_.computed("aten::arange", {}, make(pairs, Dtype::f32, "exponents"));
  const Tensor frequencies = torch_.computed("aten::pow", {reads(exponents)}, make(pairs, Dtype::f32, "frequencies"));
  const Tensor positions = torch_.computed("aten::arange", {}, make(llama_.sizes.sequence, Dtype::i64, "positions"));
  const Tensor angle =
      torch_.computed("aten::outer", {reads(positions), reads(frequencies)}, make(angles, Dtype::f32, "angles"));
  const Tensor ones = torch_.computed("aten::ones_like", {}, make(angles, Dtype::f32, "lengths"));
  turns_ = torch_.computed("aten::polar", {reads(ones), reads(angle)}, make(2 * angles, Dtype::f32, "table"));
}

Tensor Torchtitan::embed(const Tensor& ids) {
  const Scope scope(torch_.heap(), "tok_embeddings");
  return torch_.embedding(ids, llama_.embedding, llama_.sizes.vocabulary, llama_.sizes.hidden, compute_);
}

/// x.float() is a local of the function that normalizes, and is freed when that returns. Since 2025 norms are
/// torch.nn.RMSNorm.
Tensor Torchtitan::norm(const Tensor& x, int weight) {
  if (!is_of_2024_) return torch_.rms_norm(x, weight, llama_.sizes.hidden);
  Tensor normalized;
  {
    const Tensor wide = torch_.cast(x, Dtype::f32);
    Tensor scale = torch_.power(wide);
    scale = torch_.mean_of_rows(scale, llama_.sizes.hidden);
    scale = torch_.add_scalar(scale);
    scale = torch_.rsqrt(scale);
    normalized = torch_.multiply_rows(wide, scale);
  }
  const Tensor rounded = torch_.cast(normalized, x.dtype);
  normalized = {};
  return torch_.multiply_by_parameter(rounded, weight, rounded.dtype, llama_.sizes.hidden);
}

/// Its four intermediate products are locals, held until both results are there.
std::pair<Tensor, Tensor> Torchtitan::rotated(const Tensor& q, const Tensor& k) {
  const Tensor q_pairs = torch_.cast(q, Dtype::f32);
  const Tensor k_pairs = torch_.cast(k, Dtype::f32);
  const Tensor q_turned = torch_.rotate(q_pairs, turns_);
  const Tensor k_turned = torch_.rotate(k_pairs, turns_);
  Tensor q_out = torch_.cast(q_turned, q.dtype);
  return {std::move(q_out), torch_.cast(k_turned, k.dtype)};
}

Tensor Torchtitan::attention(const LlamaBlock& b, const Tensor& x) {
  const std::int64_t queries = llama_.sizes.heads * llama_.sizes.head_dim;
  const std::int64_t keys = llama_.sizes.kv_heads * llama_.sizes.head_dim;
  Tensor q = torch_.linear(x, b.q.weight, llama_.sizes.hidden, queries);
  Tensor k = torch_.linear(x, b.k.weight, llama_.sizes.hidden, keys);
  Tensor v = torch_.linear(x, b.v.weight, llama_.sizes.hidden, keys);
  std::tie(q, k) = rotated(q, k);
  if (is_of_2024_) {
    const std::int64_t times = llama_.sizes.heads / llama_.sizes.kv_heads;
    const Tensor all_keys = torch_.repeat_heads(k, llama_.sizes.kv_heads, times);
    const Tensor all_values = torch_.repeat_heads(v, llama_.sizes.kv_heads, times);
    k = all_keys;
    v = all_values;
  }
  const Tensor out = torch_.attention(q, k, v,
                                      {.batch = llama_.sizes.batch,
                                       .sequence = llama_.sizes.sequence,
                                       .heads = llama_.sizes.heads,
                                       .head_dim = llama_.sizes.head_dim,
                                       .kv_heads = is_of_2024_ ? 0 : llama_.sizes.kv_heads,  // enable_gqa
                                       .may_be_cudnn = !is_of_2024_ && may_be_cudnn_,
                                       .asks_for_cudnn = true});
  return torch_.linear(out, b.o.weight, queries, llama_.sizes.hidden);
}

Tensor Torchtitan::feed_forward(const LlamaBlock& b, const Tensor& x) {
  Tensor gate = torch_.linear(x, b.gate.weight, llama_.sizes.hidden, llama_.sizes.ffn);
  gate = torch_.silu(gate);
  Tensor up = torch_.linear(x, b.up.weight, llama_.sizes.hidden, llama_.sizes.ffn);
  const Tensor product = torch_.multiply(gate, up);
  gate = {};
  up = {};
  return torch_.linear(product, b.down.weight, llama_.sizes.ffn, llama_.sizes.hidden);
}

Tensor Torchtitan::run(const LlamaBlock& b, const Tensor& x) {
  Heap& heap = torch_.heap();
  const auto normed = [&](const char* name, const Tensor& input, int weight) {
    const Scope scope(heap, b.name + "." + name);
    return norm(input, weight);
  };
  Tensor h;
  {
    Tensor attended;
    {
      const Tensor input = normed("attention_norm", x, b.attention_norm);
      const Scope scope(heap, b.name + ".attention");
      attended = attention(b, input);
    }
    const Scope scope(heap, b.name);
    h = torch_.add(x, attended);
  }
  Tensor fed;
  {
    const Tensor input = normed("ffn_norm", h, b.ffn_norm);
    const Scope scope(heap, b.name + ".feed_forward");
    fed = feed_forward(b, input);
  }
  const Scope scope(heap, b.name);
  return torch_.add(h, fed);
}

Tensor Torchtitan::head(Tensor h, const std::function<Tensor(Tensor)>& before_output) {
  {
    const Scope scope(torch_.heap(), "norm");
    h = before_output(norm(h, llama_.norm));
  }
  const Scope scope(torch_.heap(), "output");
  torch_.heap().values = Category::logits_and_loss;
  return torch_.linear(h, llama_.output, llama_.sizes.hidden, llama_.sizes.vocabulary);
}

}  // namespace vramfit::eager
