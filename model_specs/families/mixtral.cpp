// mixtral (MixtralConfig): llama's attention, every MLP a mixture of experts.
#include "model_specs/families/families.h"
#include "model_specs/families/layered.h"

namespace vramfit {
namespace {

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 32000;
  spec.hidden_size = 4096;
  spec.intermediate_size = 14336;
  spec.num_hidden_layers = 32;
  spec.num_attention_heads = 32;
  spec.num_key_value_heads = 8;
  spec.max_position_embeddings = 131072;
  read_decoder_sizes(config, spec);
  spec.head_dim = read_head_dim(config, spec);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-5);
  spec.activation = config.activation("hidden_act", Activation::silu);
  read_window_everywhere(config, spec, 0);
  spec.rope = read_rope(config, 10000.0);
  MoeSpec moe;
  moe.num_experts = config.count("num_local_experts", 8);
  moe.experts_per_token = config.count("num_experts_per_tok", 2);
  moe.expert_intermediate_size = spec.intermediate_size;
  moe.keeps_wide_scores = true;
  spec.moe = moe;
  refuse_router_loss(config, spec);
  if (config.number("router_jitter_noise", 0) != 0) spec.graph_lacks = "router_jitter_noise of " + spec.model_type;
}

void mlp(ShapeList& list, const ModelSpec& spec, const std::string& layer, std::int64_t /*index*/) {
  list.add(layer + "mlp.gate.weight", {spec.moe->num_experts, spec.hidden_size});
  expert_shapes(list, spec, layer + "mlp.");
}

bool is_sparse(const MoeSpec& /*moe*/, std::int64_t /*layer*/) { return true; }

constexpr LayerPlan kPlan{.attention = grouped_attention_shapes, .mlp = mlp};
constexpr DecoderStyle kStyle{.is_sparse = is_sparse};

std::vector<NamedShape> mixtral_parameters(const ModelSpec& spec) { return layered_parameters(spec, kPlan); }

}  // namespace

Family mixtral_family() {
  return decoder_family<kStyle, mixtral_parameters>("mixtral", {"MixtralForCausalLM", "MixtralModel"}, parse);
}

}  // namespace vramfit
