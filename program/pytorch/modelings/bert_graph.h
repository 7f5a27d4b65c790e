// Parameters and sizes of a BERT with its masked-language-model head, read from its graph.
#pragma once

#include <string>
#include <vector>

#include "program/pytorch/modelings/segment_reader.h"

namespace vramfit::eager {

struct BertBlock {
  std::string name;
  LinearParameters query, key, value, attention_out, intermediate, out;
  NormParameters attention_norm, out_norm;  // behind attention, and behind the feed-forward
};

struct BertSizes {
  std::int64_t batch = 0, sequence = 0, hidden = 0, heads = 0, head_dim = 0, ffn = 0, vocabulary = 0;
  std::int64_t positions = 0, types = 0;  // rows of their tables
};

struct BertGraph {
  std::vector<BertBlock> blocks;
  int words = -1, positions = -1, types = -1;
  NormParameters embedding_norm, transform_norm;
  LinearParameters transform;
  int output_bias = -1;  // of the output layer, whose weights are `words`
  DropoutRates dropout;
  Activation activation = Activation::gelu_erf;
  bool has_composed_activation = false;  // of many calls (gelu_new)
  BertSizes sizes;
};

/// Throws NotModelled, naming the job's modeling, for a graph of another form.
BertGraph bert_graph(const Graph& graph, const Job& job);

}  // namespace vramfit::eager
