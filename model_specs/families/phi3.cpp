// phi3 (Phi3Config): llama with q, k and v in one matrix, gate and up in another.
#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{.packed = true};

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 32064;
  spec.hidden_size = 3072;
  spec.intermediate_size = 8192;
  spec.num_hidden_layers = 32;
  spec.num_attention_heads = 32;
  spec.max_position_embeddings = 4096;
  read_decoder_sizes(config, spec);
  spec.head_dim = read_head_dim(config, spec);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-5);
  spec.activation = config.activation("hidden_act", Activation::silu);
  spec.rope = read_rope(config, 10000.0);
  spec.rope.partial_factor = config.number("partial_rotary_factor", spec.rope.partial_factor, 1e-6, 1.0);
  read_window_everywhere(config, spec, 0);
  if (config.number("resid_pdrop", 0, 0, 1) != 0) spec.graph_lacks = "resid_pdrop of phi3";
}

}  // namespace

Family phi3_family() { return decoder_family<kStyle>("phi3", {"Phi3ForCausalLM", "Phi3Model"}, parse); }

}  // namespace vramfit
