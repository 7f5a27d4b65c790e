#include "model_specs/families/decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "model_specs/families/families.h"
#include "model_specs/families/graph_builder.h"

namespace vramfit {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";

void attention_shapes(ShapeList& list, const ModelSpec& spec, const DecoderStyle& style, const std::string& layer) {
  const std::int64_t q = spec.num_attention_heads * spec.head_dim;
  const std::int64_t kv = spec.num_key_value_heads * spec.head_dim;
  const std::string module = layer + "self_attn.";
  if (style.packed) {
    // phi3's modules are made in this order.
    list.linear(module + "o_proj", spec.hidden_size, q, spec.attention_out_bias);
    list.linear(module + "qkv_proj", q + 2 * kv, spec.hidden_size, spec.attention_bias);
    return;
  }
  list.linear(module + "q_proj", q, spec.hidden_size, spec.attention_bias);
  list.linear(module + "k_proj", kv, spec.hidden_size, spec.attention_bias);
  list.linear(module + "v_proj", kv, spec.hidden_size, spec.attention_bias);
  list.linear(module + "o_proj", spec.hidden_size, q, spec.attention_out_bias);
  if (style.qk_norm) {
    list.add(module + "q_norm.weight", {spec.head_dim});
    list.add(module + "k_norm.weight", {spec.head_dim});
  }
}

void mlp_shapes(ShapeList& list, const ModelSpec& spec, const DecoderStyle& style, const std::string& layer) {
  const std::string module = layer + "mlp.";
  if (style.packed) {
    list.linear(module + "gate_up_proj", 2 * spec.intermediate_size, spec.hidden_size, spec.mlp_bias);
  } else {
    list.linear(module + "gate_proj", spec.intermediate_size, spec.hidden_size, spec.mlp_bias);
    list.linear(module + "up_proj", spec.intermediate_size, spec.hidden_size, spec.mlp_bias);
  }
  list.linear(module + "down_proj", spec.hidden_size, spec.intermediate_size, spec.mlp_bias);
}

void require_window(const ConfigReader& config, const ModelSpec& spec) {
  const bool sliding = std::ranges::find(spec.layer_spans, AttentionSpan::sliding) != spec.layer_spans.end();
  if (sliding && spec.sliding_window == 0) config.fail("sliding_window", "none is given, but some layers slide");
}

// One block's ops; every weight is named from `layer_`, "model.layers.3.".
class Block {
 public:
  Block(GraphBuilder& builder, const ModelSpec& spec, const DecoderStyle& style, std::int64_t index)
      : builder_(builder),
        spec_(spec),
        style_(style),
        layer_(fmt::format("model.layers.{}.", index)),
        sparse_(style.is_sparse != nullptr && style.is_sparse(*spec.moe, index)),
        sliding_(!spec.layer_spans.empty() &&
                 spec.layer_spans[static_cast<std::size_t>(index)] == AttentionSpan::sliding) {}

  int build() {
    const int x = 0;
    int f = attention(norm("input_layernorm", x));
    if (style_.four_norms) f = norm("post_attention_layernorm", f);
    const int middle = builder_.add("residual_1", x, scaled("scale_1", f));
    f = mlp(norm(style_.four_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", middle));
    if (style_.four_norms) f = norm("post_feedforward_layernorm", f);
    return builder_.add("residual_2", middle, scaled("scale_2", f));
  }

 private:
  int scaled(const std::string& name, int f) { return builder_.scale(name, f, spec_.residual_multiplier); }

  int norm(const std::string& name, int x) {
    return builder_.rms_norm(
        name, x,
        {.weight = layer_ + name + ".weight", .eps = spec_.norm_eps, .weight_plus_one = style_.weight_plus_one});
  }

  int linear(const std::string& module, int x) {
    const std::string bias = layer_ + module + ".bias";
    return builder_.linear(module, x,
                           {.weight = layer_ + module + ".weight", .bias = builder_.has_parameter(bias) ? bias : ""});
  }

  // A slice of a packed matrix of output features.
  int slice(const std::string& op, const std::string& module, int x, std::int64_t first, std::int64_t count) {
    const std::string bias = layer_ + module + ".bias";
    return builder_.linear(op, x,
                           {.weight = layer_ + module + ".weight",
                            .bias = builder_.has_parameter(bias) ? bias : "",
                            .first = first,
                            .count = count});
  }

  int head_norm(const std::string& name, int x, std::int64_t heads) {
    if (!style_.qk_norm) return x;
    return builder_.rms_norm(name, x,
                             {.weight = layer_ + name + ".weight",
                              .eps = spec_.norm_eps,
                              .groups = heads,
                              .weight_plus_one = style_.weight_plus_one});
  }

  int attention(int x) {
    const std::int64_t heads = spec_.num_attention_heads, kv_heads = spec_.num_key_value_heads;
    const std::int64_t q_size = heads * spec_.head_dim, kv_size = kv_heads * spec_.head_dim;
    Attributes attributes;
    attributes.heads = heads;
    attributes.kv_heads = kv_heads;
    attributes.head_dim = spec_.head_dim;
    attributes.scale = spec_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)));
    attributes.softcap = spec_.attention_softcap;
    attributes.window = sliding_ ? spec_.sliding_window : 0;
    const bool packed = style_.packed;
    const std::string qkv = "self_attn.qkv_proj";
    int q = packed ? slice("self_attn.q_proj", qkv, x, 0, q_size) : linear("self_attn.q_proj", x);
    int k = packed ? slice("self_attn.k_proj", qkv, x, q_size, kv_size) : linear("self_attn.k_proj", x);
    const int v = packed ? slice("self_attn.v_proj", qkv, x, q_size + kv_size, kv_size) : linear("self_attn.v_proj", x);
    q = head_norm("self_attn.q_norm", q, heads);
    k = head_norm("self_attn.k_norm", k, kv_heads);
    const Rope& rope = sliding_ && style_.local_rope ? spec_.local_rope : spec_.rope;
    q = builder_.rope("self_attn.rope_q", q, attributes, rope);
    k = builder_.rope("self_attn.rope_k", k, attributes, rope);
    const std::string sinks = layer_ + "self_attn.sinks";
    const int out =
        builder_.attention("self_attn.attention", q, k, v, attributes, builder_.has_parameter(sinks) ? sinks : "");
    return linear("self_attn.o_proj", out);
  }

  int experts(int x) {
    ExpertsUse use{.router = layer_ + "mlp.gate.weight",
                   .gate_up = layer_ + "mlp.experts.gate_up_proj",
                   .down = layer_ + "mlp.experts.down_proj",
                   .attributes = {}};
    use.attributes.activation = spec_.activation;
    use.attributes.experts_per_token = spec_.moe->experts_per_token;
    use.attributes.normalizes_scores = spec_.moe->normalizes_scores;
    use.attributes.keeps_wide_scores = spec_.moe->keeps_wide_scores;
    use.attributes.limit = spec_.moe->limit;
    if (builder_.has_parameter(layer_ + "mlp.router.weight")) {  // gpt_oss
      use.router = layer_ + "mlp.router.weight";
      use.router_bias = layer_ + "mlp.router.bias";
      use.gate_up_bias = use.gate_up + "_bias";
      use.down_bias = use.down + "_bias";
      use.attributes.transposed_weight = true;
    }
    return builder_.experts("mlp.experts", x, use);
  }

  int mlp(int x) {
    if (sparse_) return experts(x);
    const std::int64_t size = spec_.intermediate_size;
    const std::string packed = "mlp.gate_up_proj";
    const int gate = style_.packed ? slice("mlp.gate_proj", packed, x, 0, size) : linear("mlp.gate_proj", x);
    const int up = style_.packed ? slice("mlp.up_proj", packed, x, size, size) : linear("mlp.up_proj", x);
    return linear("mlp.down_proj", builder_.glu("mlp.glu", gate, up, spec_.activation));
  }

  GraphBuilder& builder_;
  const ModelSpec& spec_;
  const DecoderStyle& style_;
  std::string layer_;
  bool sparse_, sliding_;
};

}  // namespace

void ShapeList::linear(const std::string& module, std::int64_t out, std::int64_t in, bool bias) {
  add(module + ".weight", {out, in});
  if (bias) add(module + ".bias", {out});
}

void ShapeList::layer_norm(const std::string& module, std::int64_t features) {
  add(module + ".weight", {features});
  add(module + ".bias", {features});
}

bool is_headless(const ModelSpec& spec) { return spec.architecture == find_family(spec.model_type).classes[1]; }

std::vector<NamedShape> decoder_parameters(const ModelSpec& spec, const DecoderStyle& style) {
  ShapeList list;
  const std::string prefix = is_headless(spec) ? "" : "model.";
  list.add(prefix + "embed_tokens.weight", {spec.vocab_size, spec.hidden_size});
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("{}layers.{}.", prefix, i);
    attention_shapes(list, spec, style, layer);
    mlp_shapes(list, spec, style, layer);
    list.add(layer + "input_layernorm.weight", {spec.hidden_size});
    list.add(layer + "post_attention_layernorm.weight", {spec.hidden_size});
    if (style.four_norms) {
      list.add(layer + "pre_feedforward_layernorm.weight", {spec.hidden_size});
      list.add(layer + "post_feedforward_layernorm.weight", {spec.hidden_size});
    }
  }
  list.add(prefix + "norm.weight", {spec.hidden_size});
  if (!is_headless(spec) && !spec.tie_word_embeddings) {
    list.add("lm_head.weight", {spec.vocab_size, spec.hidden_size});
  }
  return list.take();
}

Graph decoder_graph(const std::vector<NamedShape>& shapes, const ModelSpec& spec, const DecoderStyle& style,
                    const LossOptions& loss) {
  GraphBuilder builder(shapes);
  builder.begin("embed", SegmentRole::embedding, 0, "ids");
  const double scale = style.scaled_embedding ? std::sqrt(static_cast<double>(spec.hidden_size)) : 1.0;
  const int embedded = builder.embedding("embed_tokens", kEmbedding, scale);
  builder.end(builder.scale("embedding_scale", embedded, spec.embedding_multiplier));
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    builder.begin(fmt::format("layers.{}", i), SegmentRole::block, spec.hidden_size);
    builder.end(Block(builder, spec, style, i).build());
  }
  builder.begin("head", SegmentRole::head, spec.hidden_size);
  const int normed = builder.rms_norm(
      "norm", 0, {.weight = "model.norm.weight", .eps = spec.norm_eps, .weight_plus_one = style.weight_plus_one});
  // The same as dividing the logits, which are larger and don't exist at once under chunked loss.
  const int x = builder.scale("logits_scale", normed, 1 / spec.logits_scaling);
  const LinearUse head{.weight = spec.tie_word_embeddings ? kEmbedding : "lm_head.weight", .bias = ""};
  builder.finish_with_loss(x, head, spec.final_logit_softcap, loss);
  return builder.take();
}

void read_optional_windows(ConfigReader& config, ModelSpec& spec) {
  const bool used = config.boolean("use_sliding_window", false);
  const std::int64_t window = config.is_null("sliding_window") ? 0 : config.size("sliding_window", 4096);
  spec.sliding_window = used ? window : 0;
  const std::int64_t first = config.size_or_zero("max_window_layers", 28);
  spec.layer_spans = config.layer_types(spec.num_hidden_layers);
  if (spec.layer_spans.empty()) {
    for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
      const bool sliding = spec.sliding_window > 0 && i >= first;
      spec.layer_spans.push_back(sliding ? AttentionSpan::sliding : AttentionSpan::full);
    }
  }
  require_window(config, spec);
}

void read_window_everywhere(ConfigReader& config, ModelSpec& spec, std::int64_t omitted) {
  spec.sliding_window = config.is_null("sliding_window") ? 0 : config.size_or_zero("sliding_window", omitted);
  const AttentionSpan span = spec.sliding_window > 0 ? AttentionSpan::sliding : AttentionSpan::full;
  spec.layer_spans.assign(static_cast<std::size_t>(spec.num_hidden_layers), span);
}

void read_alternating_windows(ConfigReader& config, ModelSpec& spec, std::int64_t pattern) {
  spec.sliding_window = config.is_null("sliding_window") ? 0 : config.size("sliding_window", 4096);
  spec.layer_spans = config.layer_types(spec.num_hidden_layers);
  if (spec.layer_spans.empty()) {
    for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
      spec.layer_spans.push_back((i + 1) % pattern != 0 ? AttentionSpan::sliding : AttentionSpan::full);
    }
  }
  require_window(config, spec);
}

std::vector<NamedBuffer> decoder_buffers(const ModelSpec& spec) {
  const std::string prefix = is_headless(spec) ? "" : "model.";
  const auto dims = static_cast<std::int64_t>(static_cast<double>(spec.head_dim) * spec.rope.partial_factor);
  return {{prefix + "rotary_emb.inv_freq", {ceil_div(dims, 2)}, Dtype::f32, false},
          {prefix + "rotary_emb.original_inv_freq", {ceil_div(dims, 2)}, Dtype::f32, false}};
}

std::vector<NamedBuffer> scaled_decoder_buffers(const ModelSpec& spec) {
  std::vector<NamedBuffer> list = decoder_buffers(spec);
  const std::string prefix = is_headless(spec) ? "" : "model.";
  list.insert(list.begin(), {prefix + "embed_tokens.embed_scale", {}, Dtype::f32, false});
  return list;
}

void refuse_bidirectional(ConfigReader& config, ModelSpec& spec) {
  const bool asked = config.has("use_bidirectional_attention") && config.boolean("use_bidirectional_attention", false);
  if (asked) spec.graph_lacks = "use_bidirectional_attention of " + spec.model_type;
}

}  // namespace vramfit
