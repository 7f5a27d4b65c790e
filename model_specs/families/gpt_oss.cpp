// gpt_oss (GptOssConfig): attention with sinks and biases, every MLP a mixture of experts with biases. A checkpoint in
// MXFP4 is counted as its elements, and trained as the bf16 that transformers makes of it, as it can't train MXFP4.
#include <algorithm>

#include "model_specs/families/families.h"
#include "model_specs/families/layered.h"

namespace vramfit {
namespace {

/// Layers take turns unless layer_types is given. The library makes both masks in any case.
void read_windows(ConfigReader& config, ModelSpec& spec) {
  spec.sliding_window = config.is_null("sliding_window") ? 0 : config.size("sliding_window", 128);
  spec.layer_spans = config.layer_types(spec.num_hidden_layers);
  for (std::int64_t i = static_cast<std::int64_t>(spec.layer_spans.size()); i < spec.num_hidden_layers; ++i) {
    spec.layer_spans.push_back(i % 2 == 0 ? AttentionSpan::sliding : AttentionSpan::full);
  }
  const bool slides = std::ranges::find(spec.layer_spans, AttentionSpan::sliding) != spec.layer_spans.end();
  if (!slides || spec.sliding_window == 0) spec.graph_lacks = "layers without a sliding window of " + spec.model_type;
}

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 201088;
  spec.hidden_size = 2880;
  spec.intermediate_size = 2880;
  spec.num_hidden_layers = 36;
  spec.num_attention_heads = 64;
  spec.num_key_value_heads = 8;
  spec.max_position_embeddings = 131072;
  read_decoder_sizes(config, spec);
  spec.head_dim = config.is_null("head_dim") ? read_head_dim(config, spec) : config.size("head_dim", 64);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.attention_bias = spec.attention_out_bias = config.boolean("attention_bias", true);
  spec.norm_eps = config.number("rms_norm_eps", 1e-5);
  spec.activation = config.activation("hidden_act", Activation::silu);
  read_windows(config, spec);
  spec.rope = read_rope(config, 150000.0);
  // Its frequencies are other numbers, which stay as they are in training.
  if (spec.rope.scaling_name == "yarn") spec.rope.scaling = Rope::Scaling::yarn;
  MoeSpec moe;
  moe.num_experts = config.count("num_local_experts", 128);
  moe.experts_per_token = config.count("num_experts_per_tok", 4);
  moe.expert_intermediate_size = spec.intermediate_size;
  moe.limit = config.number("swiglu_limit", 7.0);
  spec.moe = moe;
  refuse_router_loss(config, spec);
  if (config.number("attention_dropout", 0) != 0) spec.graph_lacks = "attention_dropout of " + spec.model_type;
}

void attention(ShapeList& list, const ModelSpec& spec, const std::string& layer) {
  list.add(layer + "self_attn.sinks", {spec.num_attention_heads});
  grouped_attention_shapes(list, spec, layer);
}

// Unlike the other families' experts, these lie (inputs, outputs).
void mlp(ShapeList& list, const ModelSpec& spec, const std::string& layer, std::int64_t /*index*/) {
  const std::int64_t hidden = spec.hidden_size, inner = spec.intermediate_size, experts = spec.moe->num_experts;
  const std::string module = layer + "mlp.";
  list.linear(module + "router", experts, hidden, true);
  list.add(module + "experts.gate_up_proj", {experts, hidden, 2 * inner});
  list.add(module + "experts.gate_up_proj_bias", {experts, 2 * inner});
  list.add(module + "experts.down_proj", {experts, inner, hidden});
  list.add(module + "experts.down_proj_bias", {experts, hidden});
}

bool is_sparse(const MoeSpec& /*moe*/, std::int64_t /*layer*/) { return true; }

constexpr LayerPlan kPlan{.attention = attention, .mlp = mlp};
constexpr DecoderStyle kStyle{.is_sparse = is_sparse};

std::vector<NamedShape> gpt_oss_parameters(const ModelSpec& spec) { return layered_parameters(spec, kPlan); }

}  // namespace

Family gpt_oss_family() {
  return decoder_family<kStyle, gpt_oss_parameters>("gpt_oss", {"GptOssForCausalLM", "GptOssModel"}, parse);
}

}  // namespace vramfit
