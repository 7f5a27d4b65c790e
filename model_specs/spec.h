// A model's config.json, validated and with the defaults of its family filled in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model_specs/dtype.h"

namespace vramfit {

enum class Activation { silu, gelu_tanh, gelu_erf, relu };

/// Rotary embedding of one kind of layer. Frequencies are computed once, in fp32, on the host.
struct Rope {
  /// yarn: of gpt_oss alone, whose graph no engine of this project runs; other: counted, but build_graph refuses it.
  enum class Scaling { none, linear, llama3, yarn, other };
  double theta = 10000.0;
  double partial_factor = 1.0;  // share of head_dim that is rotated (gpt-neox: rotary_pct)
  Scaling scaling = Scaling::none;
  double factor = 1.0;                                   // linear and llama3
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  std::int64_t original_max_position_embeddings = 8192;  // llama3
  std::string scaling_name;                              // other: rope_type as given ("yarn")
  bool operator==(const Rope&) const = default;
};

enum class AttentionSpan { full, sliding };

struct MoeSpec {
  std::int64_t num_experts = 0, experts_per_token = 0, expert_intermediate_size = 0;
  std::int64_t num_shared_experts = 0, shared_expert_intermediate_size = 0;
  std::int64_t first_dense_layers = 0;     // deepseek: first_k_dense_replace
  std::int64_t sparse_step = 1;            // qwen: decoder_sparse_step
  std::vector<std::int64_t> dense_layers;  // qwen: mlp_only_layers
  bool normalizes_scores = true;           // qwen: norm_topk_prob
  bool keeps_wide_scores = false;          // mixtral: scores stay fp32 when logits aren't
  double limit = 0;                        // gpt_oss: gates and ups are clamped to it (swiglu_limit); 0: they aren't
};

struct MlaSpec {                 // multi-head latent attention (deepseek)
  std::int64_t q_lora_rank = 0;  // 0: q_proj is one matrix
  std::int64_t kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
};

/// One trainable tensor as the checkpoint names it. A tied weight appears once.
struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// Field names are those of Hugging Face's config.json where it has one; nothing here is derived
/// except defaults that the family's configuration class applies when a key is omitted.
struct ModelSpec {
  std::string name;          // as the user gave it
  std::string model_type;    // "llama": the row of the families table
  std::string architecture;  // architectures[0]: the class that `parameters` counts
  std::string source;        // where the description came from (path, catalog, hub id @ revision)

  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  std::int64_t num_hidden_layers = 0, num_decoder_layers = 0;  // t5: encoder, decoder
  std::int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  std::int64_t max_position_embeddings = 0, type_vocab_size = 0;
  std::int64_t word_embed_proj_dim = 0;             // opt
  std::int64_t relative_attention_num_buckets = 0;  // t5
  bool has_position_table = false;                  // which limits the sequence length; rotary positions don't
  bool norm_affine = true, final_norm = true;       // opt: norms have weights; one follows the last block

  bool tie_word_embeddings = false;
  bool attention_bias = false, attention_out_bias = false, mlp_bias = false;
  bool gated_mlp = true;
  double norm_eps = 1e-6;
  Activation activation = Activation::silu;
  bool activation_is_composed = false;                    // of many calls in transformers (gelu_new)
  std::optional<double> attention_scale;                  // 1/sqrt(head_dim) unless given
  double attention_softcap = 0, final_logit_softcap = 0;  // 0: none
  bool upcasts_scores = false;                            // by transformers' own attention (gpt2)
  // granite: of the embedding and of each branch before the residual is added; the logits are divided by the third
  double embedding_multiplier = 1, residual_multiplier = 1, logits_scaling = 1;
  std::int64_t sliding_window = 0;         // 0: none
  std::vector<AttentionSpan> layer_spans;  // one per layer
  Rope rope, local_rope;                   // local_rope: sliding layers of gemma3
  // What the config asks for; the engine trains without. `dropout`: of what blocks add to the hidden states.
  double dropout = 0, embedding_dropout = 0, attention_dropout = 0;

  std::optional<MoeSpec> moe;
  std::optional<MlaSpec> mla;
  Dtype stored_dtype = Dtype::f32;  // dtype | torch_dtype
  std::string library_attention;    // transformers' code that the config asks for: "eager"; "" if its usual
  std::string quantization;         // quantization_config.quant_method, "" if none
  std::string note;                 // what a person must know of this description: "text model only", "" if nothing
  std::string graph_lacks;          // a feature asked for that build_graph refuses by this name; "" if none
  std::vector<NamedShape> tensors;  // of a family not described here, from safetensors headers; sizes are then 0
  std::string config_json;          // the text it was read from, carried into plan.json
};

}  // namespace vramfit
