// qwen2_moe and qwen3_moe (Qwen2MoeConfig, Qwen3MoeConfig): some layers a mixture of experts. The first one is counted
// only.
#include <algorithm>

#include "model_specs/families/families.h"
#include "model_specs/families/layered.h"

namespace vramfit {
namespace {

// What differs where a key is omitted.
struct Defaults {
  std::int64_t intermediate_size, num_attention_heads, num_key_value_heads;
  std::int64_t num_experts, experts_per_token, expert_intermediate_size;
};

void parse_common(ConfigReader& config, ModelSpec& spec, const Defaults& defaults) {
  spec.vocab_size = 151936;
  spec.hidden_size = 2048;
  spec.intermediate_size = defaults.intermediate_size;
  spec.num_hidden_layers = 24;
  spec.num_attention_heads = defaults.num_attention_heads;
  spec.num_key_value_heads = defaults.num_key_value_heads;
  spec.max_position_embeddings = 32768;
  read_decoder_sizes(config, spec);
  spec.head_dim = read_head_dim(config, spec);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.activation = config.activation("hidden_act", Activation::silu);
  spec.rope = read_rope(config, 10000.0);
  MoeSpec moe;
  moe.num_experts = config.size_or_zero("num_experts", defaults.num_experts, kMostParts);
  moe.experts_per_token = config.count("num_experts_per_tok", defaults.experts_per_token);
  moe.expert_intermediate_size = config.size("moe_intermediate_size", defaults.expert_intermediate_size);
  moe.sparse_step = config.count("decoder_sparse_step", 1);
  moe.dense_layers = config.integers("mlp_only_layers");
  spec.moe = moe;
}

void parse_qwen2(ConfigReader& config, ModelSpec& spec) {
  parse_common(config, spec, {5632, 16, 16, 60, 4, 1408});
  spec.attention_bias = config.boolean("qkv_bias", true);
  spec.moe->num_shared_experts = 1;
  spec.moe->shared_expert_intermediate_size = config.size("shared_expert_intermediate_size", 5632);
}

void parse_qwen3(ConfigReader& config, ModelSpec& spec) {
  parse_common(config, spec, {6144, 32, 4, 128, 8, 768});
  spec.attention_bias = spec.attention_out_bias = config.boolean("attention_bias", false);
  spec.moe->normalizes_scores = config.boolean("norm_topk_prob", false);
  const std::int64_t window = config.is_null("sliding_window") ? 0 : config.size("sliding_window", 4096);
  spec.sliding_window = config.boolean("use_sliding_window", false) ? window : 0;
  const AttentionSpan span = spec.sliding_window > 0 ? AttentionSpan::sliding : AttentionSpan::full;
  spec.layer_spans.assign(static_cast<std::size_t>(spec.num_hidden_layers), span);
  refuse_router_loss(config, spec);
}

bool is_sparse(const MoeSpec& moe, std::int64_t index) {
  const bool dense = std::find(moe.dense_layers.begin(), moe.dense_layers.end(), index) != moe.dense_layers.end();
  return !dense && moe.num_experts > 0 && (index + 1) % moe.sparse_step == 0;
}

void qwen2_mlp(ShapeList& list, const ModelSpec& spec, const std::string& layer, std::int64_t index) {
  const MoeSpec& moe = *spec.moe;
  const std::string module = layer + "mlp.";
  if (!is_sparse(moe, index)) return gated_mlp_shapes(list, spec, module, spec.intermediate_size);
  list.add(module + "gate.weight", {moe.num_experts, spec.hidden_size});
  expert_shapes(list, spec, module);
  gated_mlp_shapes(list, spec, module + "shared_expert.", moe.shared_expert_intermediate_size);
  list.add(module + "shared_expert_gate.weight", {1, spec.hidden_size});
}

void qwen3_attention(ShapeList& list, const ModelSpec& spec, const std::string& layer) {
  grouped_attention_shapes(list, spec, layer);
  list.add(layer + "self_attn.q_norm.weight", {spec.head_dim});
  list.add(layer + "self_attn.k_norm.weight", {spec.head_dim});
}

void qwen3_mlp(ShapeList& list, const ModelSpec& spec, const std::string& layer, std::int64_t index) {
  const std::string module = layer + "mlp.";
  if (!is_sparse(*spec.moe, index)) return gated_mlp_shapes(list, spec, module, spec.intermediate_size);
  expert_shapes(list, spec, module);
  list.add(module + "gate.weight", {spec.moe->num_experts, spec.hidden_size});
}

constexpr LayerPlan kQwen2Plan{.attention = grouped_attention_shapes, .mlp = qwen2_mlp};
constexpr LayerPlan kQwen3Plan{.attention = qwen3_attention, .mlp = qwen3_mlp};
constexpr DecoderStyle kQwen3Style{.qk_norm = true, .is_sparse = is_sparse};

std::vector<NamedShape> qwen3_parameters(const ModelSpec& spec) { return layered_parameters(spec, kQwen3Plan); }

}  // namespace

Family qwen2_moe_family() {
  return {.model_type = "qwen2_moe",
          .classes = {"Qwen2MoeForCausalLM", "Qwen2MoeModel"},
          .parse = parse_qwen2,
          .parameters = [](const ModelSpec& spec) { return layered_parameters(spec, kQwen2Plan); },
          .buffers = decoder_buffers,
          .graph = nullptr};
}

Family qwen3_moe_family() {
  return decoder_family<kQwen3Style, qwen3_parameters>("qwen3_moe", {"Qwen3MoeForCausalLM", "Qwen3MoeModel"},
                                                       parse_qwen3);
}

}  // namespace vramfit
