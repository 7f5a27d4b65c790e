// gpt_oss (GptOssConfig): attention with sinks and biases, every MLP a mixture of experts with biases. A checkpoint in
// MXFP4 is counted as its elements. Counted only.
#include "model_specs/families/families.h"
#include "model_specs/families/layered.h"

namespace vramfit {
namespace {

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
  spec.sliding_window = config.is_null("sliding_window") ? 0 : config.size("sliding_window", 128);
  spec.rope = read_rope(config, 150000.0);
  MoeSpec moe;
  moe.num_experts = config.count("num_local_experts", 128);
  moe.experts_per_token = config.count("num_experts_per_tok", 4);
  moe.expert_intermediate_size = spec.intermediate_size;
  spec.moe = moe;
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

constexpr LayerPlan kPlan{.attention = attention, .mlp = mlp};

}  // namespace

Family gpt_oss_family() {
  return {.model_type = "gpt_oss",
          .classes = {"GptOssForCausalLM", "GptOssModel"},
          .parse = parse,
          .parameters = [](const ModelSpec& spec) { return layered_parameters(spec, kPlan); },
          .buffers = decoder_buffers,
          .graph = nullptr};
}

}  // namespace vramfit
