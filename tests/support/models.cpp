#include "tests/support/models.h"

#include "model_specs/config.h"

namespace vramfit::testing {

ModelSpec small_llama() {
  ModelSpec spec = parse_config(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512, "max_position_embeddings": 256, "tie_word_embeddings": false})",
                                "small_llama");
  spec.name = "small_llama";
  return spec;
}

ModelSpec llama_8b() {
  ModelSpec spec = parse_config(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0, "tie_word_embeddings": false})",
                                "llama_8b");
  spec.name = "llama_8b";
  return spec;
}

}  // namespace vramfit::testing
