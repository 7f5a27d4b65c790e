// deepseek_v2 and deepseek_v3 (DeepseekV2Config, DeepseekV3Config): multi-head latent attention, the first layers
// dense, then routed and shared experts. The multi-token prediction layer of a checkpoint is not part of transformers'
// classes. Counted only.
#include <fmt/format.h>

#include "model_specs/families/families.h"
#include "model_specs/families/layered.h"

namespace vramfit {
namespace {

void parse_common(ConfigReader& config, ModelSpec& spec) {
  read_decoder_sizes(config, spec);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.attention_bias = config.boolean("attention_bias", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.activation = config.activation("hidden_act", Activation::silu);
  spec.rope = read_rope(config, 10000.0);
  MlaSpec mla;
  mla.q_lora_rank = config.is_null("q_lora_rank") ? 0 : config.size("q_lora_rank", 1536);
  mla.kv_lora_rank = config.size("kv_lora_rank", 512);
  mla.qk_nope_head_dim = config.size("qk_nope_head_dim", 128);
  mla.qk_rope_head_dim = config.size("qk_rope_head_dim", 64);
  mla.v_head_dim = config.size("v_head_dim", 128);
  spec.mla = mla;
  spec.head_dim = mla.qk_rope_head_dim;  // what is rotated
}

void parse_v2(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 102400;
  spec.hidden_size = 4096;
  spec.intermediate_size = 11008;
  spec.num_hidden_layers = 32;
  spec.num_attention_heads = 32;
  spec.max_position_embeddings = 2048;
  parse_common(config, spec);
  spec.mlp_bias = config.boolean("mlp_bias", false);
  MoeSpec moe;
  moe.num_experts = config.count("n_routed_experts", 64);
  moe.experts_per_token = config.optional_size("num_experts_per_tok").value_or(1);
  moe.expert_intermediate_size = config.size("moe_intermediate_size", 1407);
  moe.num_shared_experts = config.count("n_shared_experts", 2);
  moe.first_dense_layers = config.size_or_zero("first_k_dense_replace", 0, kMostLayers);
  spec.moe = moe;
}

void parse_v3(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 129280;
  spec.hidden_size = 7168;
  spec.intermediate_size = 18432;
  spec.num_hidden_layers = 61;
  spec.num_attention_heads = 128;
  spec.max_position_embeddings = 4096;
  parse_common(config, spec);
  MoeSpec moe;
  moe.num_experts = config.count("n_routed_experts", 256);
  moe.experts_per_token = config.count("num_experts_per_tok", 8);
  moe.expert_intermediate_size = config.size("moe_intermediate_size", 2048);
  moe.num_shared_experts = config.count("n_shared_experts", 1);
  moe.first_dense_layers = config.size_or_zero("first_k_dense_replace", 3, kMostLayers);
  spec.moe = moe;
}

void attention(ShapeList& list, const ModelSpec& spec, const std::string& layer) {
  const MlaSpec& mla = *spec.mla;
  const std::int64_t hidden = spec.hidden_size, heads = spec.num_attention_heads;
  const std::int64_t q = checked_mul(heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim);
  const std::string module = layer + "self_attn.";
  if (mla.q_lora_rank == 0) {
    list.linear(module + "q_proj", q, hidden, false);
  } else {
    list.linear(module + "q_a_proj", mla.q_lora_rank, hidden, spec.attention_bias);
    list.add(module + "q_a_layernorm.weight", {mla.q_lora_rank});
    list.linear(module + "q_b_proj", q, mla.q_lora_rank, false);
  }
  list.linear(module + "kv_a_proj_with_mqa", mla.kv_lora_rank + mla.qk_rope_head_dim, hidden, spec.attention_bias);
  list.add(module + "kv_a_layernorm.weight", {mla.kv_lora_rank});
  list.linear(module + "kv_b_proj", checked_mul(heads, mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank, false);
  list.linear(module + "o_proj", hidden, checked_mul(heads, mla.v_head_dim), spec.attention_bias);
}

void mlp(ShapeList& list, const ModelSpec& spec, const std::string& layer, std::int64_t index) {
  const MoeSpec& moe = *spec.moe;
  const std::string module = layer + "mlp.";
  if (index < moe.first_dense_layers) return gated_mlp_shapes(list, spec, module, spec.intermediate_size);
  expert_shapes(list, spec, module);
  list.add(module + "gate.weight", {moe.num_experts, spec.hidden_size});
  gated_mlp_shapes(list, spec, module + "shared_experts.", moe.expert_intermediate_size * moe.num_shared_experts);
}

constexpr LayerPlan kPlan{.attention = attention, .mlp = mlp};

// The routing bias is updated by rule, not by gradient.
std::vector<NamedBuffer> v3_buffers(const ModelSpec& spec) {
  const std::string prefix = is_headless(spec) ? "" : "model.";
  std::vector<NamedBuffer> list;
  for (std::int64_t i = spec.moe->first_dense_layers; i < spec.num_hidden_layers; ++i) {
    list.push_back({fmt::format("{}layers.{}.mlp.gate.e_score_correction_bias", prefix, i),
                    {spec.moe->num_experts},
                    Dtype::f32,
                    true});
  }
  for (NamedBuffer& buffer : decoder_buffers(spec)) list.push_back(std::move(buffer));
  return list;
}

std::vector<NamedShape> deepseek_parameters(const ModelSpec& spec) { return layered_parameters(spec, kPlan); }

}  // namespace

Family deepseek_v2_family() {
  return {.model_type = "deepseek_v2",
          .classes = {"DeepseekV2ForCausalLM", "DeepseekV2Model"},
          .parse = parse_v2,
          .parameters = deepseek_parameters,
          .buffers = decoder_buffers,
          .graph = nullptr};
}

Family deepseek_v3_family() {
  return {.model_type = "deepseek_v3",
          .classes = {"DeepseekV3ForCausalLM", "DeepseekV3Model"},
          .parse = parse_v3,
          .parameters = deepseek_parameters,
          .buffers = v3_buffers,
          .graph = nullptr};
}

}  // namespace vramfit
