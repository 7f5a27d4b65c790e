#include "program/pytorch/modelings/torchtune.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/not_modelled.h"
#include "program/pytorch/modelings/segment_reader.h"
#include "program/stages/adapters.h"

namespace vramfit::eager {

Torchtune::Torchtune(const Graph& graph, const Job& job, Torch& torch)
    : torch_(torch),
      compute_(job.precision.compute),
      may_be_cudnn_(job.attention == Attention::automatic || job.attention == Attention::cudnn),
      drops_(job.lora.dropout > 0),
      is_quantized_(job.method == Method::qlora),
      has_magnitudes_(job.lora.has_magnitudes),
      positions_(job.rotary_positions > 0 ? job.rotary_positions : job.sequence),
      shards_(job.mesh.shard),
      llama_(llama_graph(graph, job)),
      rotation_(graph.is_unpacked                   ? Rotation::halves
                : llama_.blocks.front().q.bias >= 0 ? Rotation::rounded_halves
                                                    : Rotation::neighbours) {
  require_builder(job);
  require_adapters(job);
  if (has_table_of_each_layer(graph, job)) {
    for (std::size_t b = 0; b < blocks(); ++b) llama_.blocks[b].rope_table = static_cast<int>(b);
  }
  tables_.resize(static_cast<std::size_t>(llama_.blocks.back().rope_table) + 1);
}

/// lora_attn_modules, of which there is one at least, and apply_lora_to_mlp, both the same in all layers.
void Torchtune::require_adapters(const Job& job) const {
  if (!has_adapters(job)) return;
  if (is_quantized_ && rotation_ == Rotation::rounded_halves) {
    throw NotModelled("--method qlora of Qwen2 with --modeling torchtune (it has no builder for it: --method lora is)");
  }
  const auto has = [](const LinearParameters& by) { return by.lora_a >= 0; };
  const auto places = [&](const LlamaBlock& b) {
    return std::array{has(b.q), has(b.k), has(b.v), has(b.o), has(b.gate), has(b.up), has(b.down)};
  };
  const auto first = places(llama_.blocks.front());
  const bool is_alike = std::ranges::all_of(llama_.blocks, [&](const LlamaBlock& b) { return places(b) == first; });
  const auto* const attention_end = first.begin() + 4;
  const bool has_attention = std::any_of(first.begin(), attention_end, std::identity{});
  const bool is_mlp_alike = std::all_of(attention_end, first.end(), [&](bool it) { return it == first.back(); });
  if (is_alike && has_attention && is_mlp_alike) return;
  throw NotModelled(fmt::format(
      "--lora-targets {} with --modeling torchtune (its builders take some or all of q_proj, k_proj, v_proj "
      "and o_proj, and all of gate_proj, up_proj and down_proj or none, in all layers)",
      job_field_named("lora_targets").get(job)));
}

void Torchtune::require_builder(const Job& job) const {
  const LlamaStyle& style = llama_.style;
  const LlamaSizes& sizes = llama_.sizes;
  if (style.is_packed) refuse_model(job, "packed matrices");
  if (style.has_experts) refuse_model(job, "experts");
  const bool has_caps = style.caps_scores && style.caps_logits;
  if (style.has_post_norms && !has_caps) refuse_model(job, "Gemma 3");
  if (is_gemma2() && job.attention != Attention::automatic) refuse_field(job, "attention");  // it has code of its own
  const bool is_other = style.caps_scores != is_gemma2() || style.caps_logits != is_gemma2() || style.multiplies ||
                        style.has_sinks || style.scales_embedding != is_gemma();
  if (is_other || sizes.rotated_dims != sizes.head_dim) refuse_model(job, "a model built differently from Llama");
  if (is_gemma()) {
    if (llama_.output != llama_.embedding) refuse_model(job, "Gemma with an output layer of its own");
  } else if (sizes.head_dim * sizes.heads != sizes.hidden) {
    refuse_model(job, "heads of another size than hidden_size / heads");
  }
  const bool is_qwen = rotation_ == Rotation::rounded_halves;
  for (const LlamaBlock& b : llama_.blocks) {
    if (b.q_norm >= 0) refuse_model(job, "norms of queries and keys");
    const auto has_bias = [](const LinearParameters& by) { return by.bias >= 0; };
    const std::array inputs{b.q, b.k, b.v};
    const std::array others{b.o, b.gate, b.up, b.down};
    const bool is_alike = std::ranges::all_of(inputs, [&](const auto& by) { return has_bias(by) == is_qwen; });
    if (!is_alike || std::ranges::any_of(others, has_bias)) refuse_model(job, "biases elsewhere than in Qwen2");
  }
}

std::vector<Module> Torchtune::modules() const {
  std::vector<Module> modules{{"tok_embeddings", {llama_.embedding}}};
  for (const LlamaBlock& b : llama_.blocks) {
    Module layer{.name = b.name, .parameters = {}};
    for (const LinearParameters& by : {b.q, b.k, b.v, b.o, b.gate, b.down, b.up}) {
      for (const int own : {by.weight, by.bias, by.magnitudes, by.lora_a, by.lora_b}) {  // magnitudes aren't behind
        if (own >= 0) layer.parameters.push_back(own);
      }
    }
    layer.parameters.insert(layer.parameters.end(), {b.attention_norm, b.ffn_norm});
    if (is_gemma2()) layer.parameters.insert(layer.parameters.end(), {b.post_attention_norm, b.post_ffn_norm});
    modules.push_back(std::move(layer));
  }
  modules.push_back({"output", {llama_.norm}});
  if (llama_.output != llama_.embedding) modules.back().parameters.push_back(llama_.output);
  return modules;
}

/// Builders of adapters make a table for each layer, but for those of Llama 3.1 to 3.3
/// (models/*/_component_builders.py). Of Llamas, theirs alone scale rotations or tie weights.
bool Torchtune::has_table_of_each_layer(const Graph& graph, const Job& job) const {
  const bool is_llama = rotation_ == Rotation::neighbours && !is_gemma();
  const bool is_tied = llama_.output == llama_.embedding;
  const bool is_late = is_llama && (is_tied || graph.ropes.front().scaling == Rope::Scaling::llama3);
  return has_adapters(job) && !is_late;
}

void Torchtune::load() {
  const Scope scope(torch_.heap(), "rope");
  for (Table& table : tables_) make(table);
  if (has_magnitudes_) load_magnitudes();
}

/// Cosines and sines beside each other; those of halves each twice.
void Torchtune::make(Table& table) {
  const auto make = [&](std::int64_t elements, const char* what) {
    return torch_.heap().make(elements, Dtype::f32, Category::workspace, what);
  };
  const std::int64_t pairs = llama_.sizes.head_dim / 2;
  const std::int64_t angles = checked_mul(positions_, pairs);
  table.frequencies = torch_.computed("aten::pow", {}, make(pairs, "theta"));
  const Tensor positions = torch_.computed("aten::arange", {}, make(positions_, "positions"));
  const Tensor angle =
      torch_.computed("aten::outer", {reads(positions), reads(table.frequencies)}, make(angles, "angles"));
  const std::int64_t times = rotation_ == Rotation::neighbours ? 1 : 2;
  Tensor twice;
  if (times > 1) twice = torch_.computed("aten::cat", {reads(angle)}, make(times * angles, "angles twice"));
  const Tensor cosines = torch_.computed("aten::cos", {reads(angle)}, make(times * angles, "cosines"));
  const Tensor sines = torch_.computed("aten::sin", {reads(angle)}, make(times * angles, "sines"));
  table.values = torch_.computed("aten::stack", {reads(cosines), reads(sines)}, make(2 * times * angles, "cache"));
}

Tensor Torchtune::embed(const Tensor& ids) {
  const Scope scope(torch_.heap(), "tok_embeddings");
  const Tensor h = torch_.embedding(ids, llama_.embedding, llama_.sizes.vocabulary, llama_.sizes.hidden, compute_);
  return is_gemma() ? torch_.scale(h) : h;
}

/// torchtune/modules/peft/lora.py: LoRALinear.forward, whose dropout of 0 is none.
Tensor Torchtune::linear(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs) {
  const Tensor out = is_quantized_ ? torch_.linear_nf4(x, by.weight, inputs, outputs)
                                   : torch_.linear(x, by.weight, inputs, outputs, by.bias);
  if (by.lora_a < 0) return out;
  if (by.magnitudes >= 0) return with_direction(out, x, by, inputs, outputs);
  const std::int64_t rank = llama_.sizes.lora_rank;
  Tensor change = torch_.linear(drops_ ? torch_.dropout(x) : x, by.lora_a, inputs, rank);
  change = torch_.scale(torch_.linear(change, by.lora_b, rank, outputs));
  return torch_.add(out, change);
}

/// GemmaRMSNorm: 1 + weight in fp32, call by call.
Tensor Torchtune::norm_with_one(const Tensor& x, int weight) {
  Tensor normalized;
  {
    const Tensor wide = torch_.cast(x, Dtype::f32);
    Tensor scale = torch_.mean_of_rows(torch_.power(wide), llama_.sizes.hidden);
    scale = torch_.add_scalar(scale);
    scale = torch_.rsqrt(scale);
    normalized = torch_.multiply_rows(wide, scale);
  }
  normalized = torch_.multiply_columns(normalized, torch_.one_plus(weight, compute_, llama_.sizes.hidden));
  return torch_.cast(normalized, x.dtype);
}

/// F.rms_norm(x.float(), weight).to(x.dtype): where the weight is in bf16, PyTorch's kernel doesn't take both, so that
/// it runs call by call (ATen/native/layer_norm.cpp: rms_norm_composite).
Tensor Torchtune::norm(const Tensor& x, int weight) {
  if (is_gemma()) return norm_with_one(x, weight);
  if (x.dtype == Dtype::f32) return torch_.rms_norm(x, weight, llama_.sizes.hidden);
  Tensor weighted;
  {
    const Tensor wide = torch_.cast(x, Dtype::f32);
    Tensor scale;
    {
      const Tensor power = torch_.power(wide);
      const Tensor mean = torch_.add_scalar_in_place(torch_.mean_of_rows(power, llama_.sizes.hidden));
      scale = torch_.rsqrt(mean);
    }
    const Tensor normalized = torch_.multiply_rows(wide, scale);
    weighted = torch_.multiply_by_parameter(normalized, weight, compute_, llama_.sizes.hidden);
  }
  return torch_.cast(weighted, x.dtype);
}

/// RotaryPositionalEmbeddings and Llama3ScaledRoPE: pairs of neighbours, in fp32.
Tensor Torchtune::rotated(const Tensor& x, const Tensor& table) {
  const Tensor pairs = torch_.cast(x, Dtype::f32);
  const auto half = [&] { return torch_.part_of(pairs, pairs.elements / 2); };
  const auto turned = [&] { return torch_.multiply_by_constant(half(), table); };
  Tensor both;
  {
    Tensor first, second;
    {
      const Tensor cosines = turned(), sines = turned();
      first = torch_.minus(cosines, sines);
    }
    {
      const Tensor cosines = turned(), sines = turned();
      second = torch_.add(cosines, sines);
    }
    both = torch_.joined(first, second);
  }
  return torch_.cast(both, x.dtype);
}

/// Qwen2RotaryPositionalEmbeddings, whose tables are rounded by each call.
Tensor Torchtune::rotated_by_halves(const Tensor& x, const Tensor& table) {
  const auto rounded = [&](const char* what) {
    const std::int64_t numbers = checked_mul(llama_.sizes.sequence, llama_.sizes.head_dim);
    return torch_.computed("aten::_to_copy", {reads(table)},
                           torch_.heap().make(numbers, x.dtype, Category::activations, what));
  };
  const Tensor cosines = rounded("cosines, rounded"), sines = rounded("sines, rounded");
  const Tensor other = torch_.rotate_half(x);
  const Tensor by_cosines = torch_.multiply_by_constant(x, cosines);
  const Tensor by_sines = torch_.multiply_by_constant(other, sines);
  return torch_.add(by_cosines, by_sines);
}

/// Phi3RotaryPositionalEmbeddings, whose tables are not rounded, so that their products are wide; also Qwen2's in fp32.
Tensor Torchtune::rotated_in_fp32(const Tensor& x, const Tensor& table) {
  const std::int64_t numbers = checked_mul(llama_.sizes.sequence, llama_.sizes.head_dim);
  const Tensor part = torch_.heap().narrow(table, 0, numbers);
  const Tensor other = torch_.rotate_half(x);
  Tensor both;
  {
    const Tensor by_cosines = torch_.multiply_by_constant(x, part);
    const Tensor by_sines = torch_.multiply_by_constant(other, part);
    both = torch_.add(by_cosines, by_sines);
  }
  return torch_.cast(both, x.dtype);
}

/// Keys and values are repeated with heads in front, so that their gradients have another layout and are copied. Keys
/// that are rotated by pairs need no such copy: the backward of that rotation adds to zeros, whose layout is right.
Tensor Torchtune::attention(const LlamaBlock& b, const Tensor& x) {
  const LlamaSizes& s = llama_.sizes;
  const std::int64_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim, times = s.heads / s.kv_heads;
  const Tensor& table = tables_.at(static_cast<std::size_t>(b.rope_table)).values;
  const auto turned = [&](const Tensor& y) {
    if (rotation_ == Rotation::halves || (rotation_ == Rotation::rounded_halves && compute_ == Dtype::f32)) {
      return rotated_in_fp32(y, table);
    }
    return rotation_ == Rotation::rounded_halves ? rotated_by_halves(y, table) : rotated(y, table);
  };
  Tensor q = linear(x, b.q, s.hidden, queries);
  q = turned(torch_.seen_again(q));
  Tensor k = linear(x, b.k, s.hidden, keys);
  Tensor v = linear(x, b.v, s.hidden, keys);
  const bool repeats = times > 1 && s.kv_heads > 1, copies_keys = repeats && rotation_ != Rotation::neighbours;
  k = copies_keys ? torch_.copied_in_backward(k) : torch_.seen_again(k);
  v = repeats ? torch_.copied_in_backward(v) : torch_.seen_again(v);
  k = turned(k);
  k = torch_.repeat_heads(k, s.kv_heads, times);
  v = torch_.repeat_heads(v, s.kv_heads, times);
  const Tensor out = torch_.attention(q, k, v,
                                      {.batch = s.batch,
                                       .sequence = s.sequence,
                                       .heads = s.heads,
                                       .head_dim = s.head_dim,
                                       .may_be_cudnn = may_be_cudnn_});
  return linear(out, b.o, queries, s.hidden);
}

Tensor Torchtune::feed_forward(const LlamaBlock& b, const Tensor& x) {
  const LlamaSizes& s = llama_.sizes;
  Tensor h;
  {
    const Tensor gate = linear(x, b.gate, s.hidden, s.ffn);
    h = is_gemma() ? torch_.gelu(gate) : torch_.silu(gate);
  }
  {
    const Tensor up = linear(x, b.up, s.hidden, s.ffn);
    h = torch_.multiply(h, up);
  }
  return linear(h, b.down, s.ffn, s.hidden);
}

Tensor Torchtune::run(const LlamaBlock& b, const Tensor& x) {
  Heap& heap = torch_.heap();
  const auto normed = [&](const char* name, const Tensor& input, int weight) {
    const Scope scope(heap, b.name + "." + name);
    return norm(input, weight);
  };
  Tensor h = normed("sa_norm", x, b.attention_norm);
  Tensor attended;
  {
    const Scope scope(heap, b.name + ".attn");
    attended = is_gemma2() ? capped_attention(b, h) : attention(b, h);
  }
  const auto scaled = [&](const char* name, const Tensor& y, int weight) {
    return is_gemma2() ? normed(name, y, weight) : y;
  };
  {
    const Tensor change = scaled("sa_scale", attended, b.post_attention_norm);
    const Scope scope(heap, b.name);
    h = torch_.add(change, x);
  }
  Tensor fed;
  {
    const Tensor input = normed("mlp_norm", h, b.ffn_norm);
    const Scope scope(heap, b.name + ".mlp");
    fed = feed_forward(b, input);
  }
  const Tensor change = scaled("mlp_scale", fed, b.post_ffn_norm);
  const Scope scope(heap, b.name);
  return torch_.add(h, change);
}

Tensor Torchtune::head(Tensor h, const std::function<Tensor(Tensor)>& /*before_output*/) {
  const Scope scope(torch_.heap(), "norm");
  hidden_ = std::move(h);
  const Tensor normed = norm(hidden_, llama_.norm);
  if (!is_gemma2()) return normed;
  Tensor capped = torch_.divide(normed);  // where logits were meant (Gemma2FinalNorm)
  capped = torch_.tanh(capped);
  return torch_.scale(capped);
}

}  // namespace vramfit::eager
