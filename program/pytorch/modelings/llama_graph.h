// A Llama's parameters and sizes, read from its graph: what the modelings of PyTorch's libraries run on.
#pragma once

#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit::eager {

/// Parameters by index in the graph; -1: no bias, no adapter.
struct LlamaLinear {
  int weight = -1, bias = -1;
  int lora_a = -1, lora_b = -1;
};

/// One decoder block.
struct LlamaBlock {
  std::string name;
  LlamaLinear q, k, v, o, gate, up, down;
  int attention_norm = -1, ffn_norm = -1;
  int q_norm = -1, k_norm = -1;  // of each head; -1: none
};

struct LlamaSizes {
  std::int64_t batch = 0, sequence = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocabulary = 0;
  std::int64_t lora_rank = 0;
};

struct LlamaGraph {
  std::vector<LlamaBlock> blocks;
  int embedding = -1, norm = -1, output = -1;  // the same parameter where embeddings are tied
  LlamaSizes sizes;
};

/// Throws NotModelled, naming the job's modeling, for a graph that isn't a Llama's: other ops, windows.
LlamaGraph llama_graph(const Graph& graph, const Job& job);
/// Throws NotModelled("modeling torchtitan of WHAT").
[[noreturn]] void refuse_model(const Job& job, const std::string& what);

}  // namespace vramfit::eager
