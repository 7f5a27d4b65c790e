// Parameters and sizes of a GPT-2, read from its graph.
#pragma once

#include <string>
#include <vector>

#include "program/pytorch/modelings/segment_reader.h"

namespace vramfit::eager {

struct Gpt2Block {
  std::string name;
  NormParameters ln_1, ln_2;
  LinearParameters c_attn, attention_out, c_fc, mlp_out;  // matrices of (inputs, outputs)
};

struct Gpt2Sizes {
  std::int64_t batch = 0, sequence = 0, hidden = 0, heads = 0, head_dim = 0, ffn = 0, vocabulary = 0, positions = 0;
  std::int64_t outputs = 0;  // of the output layer: the vocabulary, or one (GPT2ForSequenceClassification)
};

struct Gpt2Graph {
  std::vector<Gpt2Block> blocks;
  int words = -1, positions = -1, output = -1;  // words and output are the same where they are tied
  std::vector<int> scores;                      // all parameters of an output layer of that kind
  NormParameters norm;
  DropoutRates dropout;
  Activation activation = Activation::gelu_tanh;
  bool has_composed_activation = false;  // of many calls (gelu_new)
  bool upcasts_scores = false;
  Gpt2Sizes sizes;
};

/// Whether a model adds learned positions to its embedding.
bool has_learned_positions(const Graph& graph);

/// Throws NotModelled, naming the job's modeling, for a graph of another form.
Gpt2Graph gpt2_graph(const Graph& graph, const Job& job);

}  // namespace vramfit::eager
