// Parameters and sizes of a Llama, or of a model of its form (Mistral, Qwen, Phi-3, Gemma, Granite, Mixtral), read from
// its graph: what the modelings of PyTorch's libraries run on.
#pragma once

#include <string>
#include <vector>

#include "program/pytorch/modelings/segment_reader.h"

namespace vramfit::eager {

/// A mixture of experts in place of a feed-forward.
struct LlamaExperts {
  int router = -1, gate_up = -1, down = -1;                 // parameters; -1: there is none
  int router_bias = -1, gate_up_bias = -1, down_bias = -1;  // of gpt-oss, whose matrices are (inputs, outputs)
  std::int64_t count = 0, per_token = 0, ffn = 0;
  bool normalizes_scores = false, keeps_wide_scores = false;
};

/// One decoder block.
struct LlamaBlock {
  std::string name;
  LinearParameters q, k, v, o, gate, up, down;
  LinearParameters qkv, gate_up;  // packed: in place of q, k and v, and of gate and up
  LlamaExperts experts;           // in place of gate, up and down
  int attention_norm = -1, ffn_norm = -1;
  int post_attention_norm = -1, post_ffn_norm = -1;  // of what attention and feed-forward give; -1: none
  int q_norm = -1, k_norm = -1;                      // of each head; -1: none
  int sinks = -1;                                    // a score of each head; -1: none
  std::int64_t window = 0;                           // keys that a query sees; 0: all before it
  int rope_table = 0;
};

struct LlamaSizes {
  std::int64_t batch = 0, sequence = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocabulary = 0;
  std::int64_t outputs = 0;       // of the output layer: the vocabulary, or one (AutoModelForSequenceClassification)
  std::int64_t rotated_dims = 0;  // of each head
  std::int64_t lora_rank = 0;
};

/// What families change about Llama.
struct LlamaStyle {
  bool is_packed = false;          // q, k and v in one matrix, gate and up in another (Phi-3)
  bool adds_one_to_norms = false;  // norms multiply by 1 + weight, in fp32 (Gemma)
  bool scales_embedding = false;   // by a number that the model keeps as a tensor (Gemma)
  bool has_post_norms = false;     // Gemma 2 and 3
  bool caps_scores = false;        // Gemma 2
  bool caps_logits = false;        // Gemma 2
  /// By numbers of the configuration: the embedding, what each half of a block adds, and the logits (Granite). A graph
  /// whose numbers are all 1 can't be told from Llama's.
  bool multiplies = false;
  bool has_experts = false;  // in some layers (Mixtral, Qwen3-MoE)
  /// gpt-oss: scores that no key has, with which come norms that multiply by their weight in fp32, rotations of halves
  /// apart, gates that are clamped, and masks of both kinds.
  bool has_sinks = false;
  Activation activation = Activation::silu;
};

struct LlamaGraph {
  std::vector<LlamaBlock> blocks;
  int embedding = -1, norm = -1, output = -1;  // the same parameter where embeddings are tied
  std::vector<int> scores;                     // all parameters of an output layer of that kind; empty: of logits
  LlamaStyle style;
  LlamaSizes sizes;
  double attention_dropout = 0;  // the configuration's
  std::size_t rope_tables = 1;   // two where windowed layers rotate by frequencies of their own (Gemma 3)
};

/// Gemma 2, of whose caps none need be there. (Gemma 3's heads have norms.)
bool is_gemma2(const LlamaGraph& llama);

/// Of the number that transformers' Gemma multiplies embeddings with: that in which the model was loaded.
Dtype scale_dtype(const Graph& graph, const Job& job, const LlamaGraph& llama);
/// Elements of what transformers' Llama has in fp32 beside parameters: frequencies, of which it keeps a copy, and where
/// the model was loaded in fp32 the embedding's scale.
std::vector<std::int64_t> llama_buffers_in_fp32(const Graph& graph, const Job& job);

/// Throws NotModelled, naming the job's modeling, for a graph of another form.
LlamaGraph llama_graph(const Graph& graph, const Job& job);

}  // namespace vramfit::eager
