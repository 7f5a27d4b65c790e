#include "program/pytorch/modelings/bert_graph.h"

namespace vramfit::eager {

namespace {

constexpr const char* kOtherThanBert = "a masked model built differently from BERT";

LinearParameters linear(SegmentReader& reader) {
  const Op& op = reader.take(OpKind::linear);
  if (op.attributes.transposed_weight || op.parameters.size() < 2) reader.refuse();
  return reader.with_adapter(op);
}

void read_embeddings(SegmentReader reader, BertGraph& bert) {
  bert.words = reader.take(OpKind::embedding).parameters.front().parameter;
  bert.types = reader.take(OpKind::type_embedding).parameters.front().parameter;
  bert.positions = reader.take(OpKind::position_embedding).parameters.front().parameter;
  bert.embedding_norm = reader.layer_norm();
  reader.require_end();
}

BertBlock read_block(SegmentReader reader, const std::string& name, BertGraph& bert) {
  BertBlock block;
  block.name = name;
  block.query = linear(reader);
  block.key = linear(reader);
  block.value = linear(reader);
  const Attributes& attention = reader.take(OpKind::attention).attributes;
  if (attention.causal || attention.kv_heads != attention.heads) reader.refuse();
  bert.sizes.heads = attention.heads;
  bert.sizes.head_dim = attention.head_dim;
  block.attention_out = linear(reader);
  reader.take(OpKind::add);
  block.attention_norm = reader.layer_norm();
  block.intermediate = linear(reader);
  const Attributes& activation = reader.take(OpKind::activation).attributes;
  bert.activation = activation.activation;
  bert.has_composed_activation = activation.is_composed;
  block.out = linear(reader);
  reader.take(OpKind::add);
  block.out_norm = reader.layer_norm();
  reader.require_end();
  return block;
}

void read_head(SegmentReader reader, BertGraph& bert) {
  bert.transform = linear(reader);
  reader.take(OpKind::activation);
  bert.transform_norm = reader.layer_norm();
  const LinearParameters output = linear(reader);
  if (output.weight != bert.words) reader.refuse();
  bert.output_bias = output.bias;
  reader.require_end();
}

}  // namespace

BertGraph bert_graph(const Graph& graph, const Job& job) {
  const std::size_t n = graph.segments.size();
  if (n < 4 || !graph.masked_lm) refuse_model(job, kOtherThanBert);
  const auto reader = [&](std::size_t s) { return SegmentReader(graph.segments[s], job, kOtherThanBert); };
  BertGraph bert;
  bert.dropout = graph.dropout;
  read_embeddings(reader(0), bert);
  for (std::size_t s = 1; s + 2 < n; ++s) {
    bert.blocks.push_back(read_block(reader(s), graph.segments[s].name, bert));
  }
  read_head(reader(n - 2), bert);
  reader(n - 1).take(OpKind::cross_entropy);
  const auto shape = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape; };
  bert.sizes.batch = job.micro_batch;
  bert.sizes.sequence = job.sequence;
  bert.sizes.vocabulary = shape(bert.words)[0];
  bert.sizes.hidden = shape(bert.words)[1];
  bert.sizes.positions = shape(bert.positions)[0];
  bert.sizes.types = shape(bert.types)[0];
  bert.sizes.ffn = shape(bert.blocks.front().intermediate.weight)[0];
  return bert;
}

}  // namespace vramfit::eager
