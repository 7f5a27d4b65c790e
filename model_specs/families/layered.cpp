#include "model_specs/families/layered.h"

#include <fmt/format.h>

namespace vramfit {

std::vector<NamedShape> layered_parameters(const ModelSpec& spec, const LayerPlan& plan) {
  const std::string prefix = is_headless(spec) ? "" : "model.";
  ShapeList list;
  list.add(prefix + "embed_tokens.weight", {spec.vocab_size, spec.hidden_size});
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("{}layers.{}.", prefix, i);
    plan.attention(list, spec, layer);
    plan.mlp(list, spec, layer, i);
    list.add(layer + "input_layernorm.weight", {spec.hidden_size});
    list.add(layer + "post_attention_layernorm.weight", {spec.hidden_size});
  }
  list.add(prefix + "norm.weight", {spec.hidden_size});
  if (!is_headless(spec) && !spec.tie_word_embeddings) {
    list.add("lm_head.weight", {spec.vocab_size, spec.hidden_size});
  }
  return list.take();
}

void refuse_router_loss(ConfigReader& config, ModelSpec& spec) {
  if (config.boolean("output_router_logits", false)) spec.graph_lacks = "output_router_logits of " + spec.model_type;
}

void grouped_attention_shapes(ShapeList& list, const ModelSpec& spec, const std::string& layer) {
  const std::int64_t q = checked_mul(spec.num_attention_heads, spec.head_dim);
  const std::int64_t kv = checked_mul(spec.num_key_value_heads, spec.head_dim);
  const std::string module = layer + "self_attn.";
  list.linear(module + "q_proj", q, spec.hidden_size, spec.attention_bias);
  list.linear(module + "k_proj", kv, spec.hidden_size, spec.attention_bias);
  list.linear(module + "v_proj", kv, spec.hidden_size, spec.attention_bias);
  list.linear(module + "o_proj", spec.hidden_size, q, spec.attention_out_bias);
}

void gated_mlp_shapes(ShapeList& list, const ModelSpec& spec, const std::string& module, std::int64_t intermediate) {
  list.linear(module + "gate_proj", intermediate, spec.hidden_size, spec.mlp_bias);
  list.linear(module + "up_proj", intermediate, spec.hidden_size, spec.mlp_bias);
  list.linear(module + "down_proj", spec.hidden_size, intermediate, spec.mlp_bias);
}

void expert_shapes(ShapeList& list, const ModelSpec& spec, const std::string& module) {
  const MoeSpec& moe = *spec.moe;
  list.add(module + "experts.gate_up_proj", {moe.num_experts, 2 * moe.expert_intermediate_size, spec.hidden_size});
  list.add(module + "experts.down_proj", {moe.num_experts, spec.hidden_size, moe.expert_intermediate_size});
}

}  // namespace vramfit
