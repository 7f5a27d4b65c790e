#include "program/pytorch/modelings/llama_graph.h"

#include <algorithm>

#include "job/sharding/sharding.h"
#include "program/pytorch/modelings/peft_adapters.h"
#include "program/stages/score_head.h"
#include "program/stages/trainable.h"

namespace vramfit::eager {

namespace {

constexpr const char* kOtherThanLlama = "a model built differently from Llama";

/// Of a model of Llama's form, whose style it finds out.
class Reader : private SegmentReader {
 public:
  Reader(const Segment& segment, const Job& job, LlamaStyle& style)
      : SegmentReader(segment, job, kOtherThanLlama), job_(job), style_(style) {}

  using SegmentReader::is_next;
  using SegmentReader::require_end;

  const Op& take(OpKind kind) {
    const Op& op = SegmentReader::take(kind);
    const Attributes& a = op.attributes;
    if ((a.transposed_weight && kind != OpKind::experts) || !a.causal || (a.groups != 1 && kind != OpKind::rms_norm))
      refuse();
    return op;
  }

  /// Its parameter.
  int norm() {
    const Op& op = take(OpKind::rms_norm);
    if (op.attributes.weight_plus_one != style_.adds_one_to_norms) refuse_model(job_, "norms of two kinds");
    return op.parameters.front().parameter;
  }

  LinearParameters linear() {
    const Op& op = take(OpKind::linear);
    if (op.parameters.front().count != -1) style_.is_packed = true;
    return with_adapter(op);
  }

  void scale() {
    if (!is_next(OpKind::scale)) return;
    take(OpKind::scale);
    style_.multiplies = true;
  }

 private:
  const Job& job_;
  LlamaStyle& style_;
};

void read_activation(const Op& glu, const Job& job, LlamaStyle& style) {
  style.activation = glu.attributes.activation;
  // Of Gemma, which calls PyTorch's own function for it; others compute GELU from many calls.
  const bool is_gelu = style.activation == Activation::gelu_tanh && style.adds_one_to_norms;
  if (style.activation != Activation::silu && !is_gelu) refuse_model(job, "other activations than SiLU");
}

LlamaExperts experts_of(const Op& op, const Graph& graph) {
  const auto parameter = [&](std::size_t i) { return op.parameters.at(i).parameter; };
  const auto shape = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape; };
  const bool has_biases = op.parameters.size() > 3;
  return {.router = parameter(0),
          .gate_up = parameter(1),
          .down = parameter(2),
          .router_bias = has_biases ? parameter(3) : -1,
          .gate_up_bias = has_biases ? parameter(4) : -1,
          .down_bias = has_biases ? parameter(5) : -1,
          .count = shape(parameter(0)).front(),
          .per_token = op.attributes.experts_per_token,
          .ffn = shape(parameter(2)).at(op.attributes.transposed_weight ? 1 : 2),
          .normalizes_scores = op.attributes.normalizes_scores,
          .keeps_wide_scores = op.attributes.keeps_wide_scores};
}

void read_feed_forward(Reader& reader, const Job& job, const Graph& graph, LlamaGraph& llama, LlamaBlock& block) {
  if (reader.is_next(OpKind::experts)) {
    const Op& op = reader.take(OpKind::experts);
    read_activation(op, job, llama.style);
    block.experts = experts_of(op, graph);
    llama.style.has_experts = true;
    return;
  }
  block.gate = reader.linear();
  block.up = reader.linear();
  read_activation(reader.take(OpKind::glu), job, llama.style);
  block.down = reader.linear();
  const int weight = block.gate.weight;
  const std::int64_t rows = graph.parameters[static_cast<std::size_t>(weight)].shape.front();
  llama.sizes.ffn = llama.style.is_packed ? rows / 2 : rows;
}

LlamaBlock block_of(const Segment& segment, const Job& job, const Graph& graph, LlamaGraph& llama) {
  Reader reader(segment, job, llama.style);
  LlamaBlock block;
  block.name = segment.name;
  block.attention_norm = reader.norm();
  block.q = reader.linear();
  block.k = reader.linear();
  block.v = reader.linear();
  if (reader.is_next(OpKind::rms_norm)) {
    block.q_norm = reader.norm();
    block.k_norm = reader.norm();
  }
  block.rope_table = reader.take(OpKind::rope).attributes.rope_table;
  reader.take(OpKind::rope);
  const Op& attention_op = reader.take(OpKind::attention);
  const Attributes& attention = attention_op.attributes;
  if (!attention_op.parameters.empty()) block.sinks = attention_op.parameters.front().parameter;
  llama.style.has_sinks = block.sinks >= 0;
  block.window = attention.window;
  llama.style.caps_scores = attention.softcap != 0;
  llama.sizes.heads = attention.heads;
  llama.sizes.kv_heads = attention.kv_heads;
  llama.sizes.head_dim = attention.head_dim;
  block.o = reader.linear();
  llama.style.has_post_norms = reader.is_next(OpKind::rms_norm);
  if (llama.style.has_post_norms) block.post_attention_norm = reader.norm();
  reader.scale();
  reader.take(OpKind::add);
  block.ffn_norm = reader.norm();
  read_feed_forward(reader, job, graph, llama, block);
  if (llama.style.has_post_norms) block.post_ffn_norm = reader.norm();
  reader.scale();
  reader.take(OpKind::add);
  reader.require_end();
  if (llama.style.is_packed) {
    block.qkv = block.q;
    block.gate_up = block.gate;
    block.q = block.k = block.v = block.gate = block.up = {};
  }
  return block;
}

void read_head(const Segment& head, const Job& job, LlamaGraph& llama) {
  Reader reader(head, job, llama.style);
  llama.norm = reader.norm();
  reader.scale();
  const Op& output = reader.take(OpKind::linear);
  if (output.parameters.size() > 1) refuse_model(job, "a model whose output has a bias");
  llama.output = output.parameters.front().parameter;
  llama.style.caps_logits = reader.is_next(OpKind::softcap);
  if (llama.style.caps_logits) reader.take(OpKind::softcap);
  reader.require_end();
}

}  // namespace

bool is_gemma2(const LlamaGraph& llama) {
  return llama.style.has_post_norms && !llama.blocks.empty() && llama.blocks.front().q_norm < 0;
}

LlamaGraph llama_graph(const Graph& graph, const Job& job) {
  const std::size_t n = graph.segments.size();
  if (n < 4 || graph.masked_lm || graph.ropes.empty()) refuse_model(job, kOtherThanLlama);
  const Segment& first = graph.segments.front();
  LlamaGraph llama;
  const Attributes& norm = graph.segments[1].ops.front().attributes;
  llama.style.adds_one_to_norms = norm.weight_plus_one;
  Reader reader(first, job, llama.style);
  const Op& embedding = reader.take(OpKind::embedding);
  reader.scale();
  reader.require_end();
  llama.embedding = embedding.parameters.front().parameter;
  llama.style.scales_embedding = embedding.attributes.scale != 1;
  for (std::size_t s = 1; s + 2 < n; ++s) llama.blocks.push_back(block_of(graph.segments[s], job, graph, llama));
  read_head(graph.segments[n - 2], job, llama);
  Reader(graph.segments[n - 1], job, llama.style).take(OpKind::cross_entropy);
  const auto shape = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape; };
  llama.rope_tables = graph.ropes.size();
  llama.attention_dropout = graph.dropout.attention;
  llama.sizes.batch = job.micro_batch;
  llama.sizes.sequence = job.sequence;
  llama.sizes.hidden = shape(llama.embedding)[1];
  llama.sizes.vocabulary = shape(llama.embedding)[0];
  llama.sizes.outputs = shape(llama.output)[0];
  llama.scores = score_parameters(graph);
  llama.sizes.rotated_dims = graph.rope_dims.front();
  llama.sizes.lora_rank = job.lora.rank;
  return llama;
}

Dtype scale_dtype(const Graph& graph, const Job& job, const LlamaGraph& llama) {
  if (job.method == Method::qlora) return dtype_of_loading(job);
  // Rehearsed: DeepSpeed's ZeRO-1 and ZeRO-2 leave this buffer as it was loaded.
  const bool is_flat = job.runtime == Runtime::deepspeed && !sharding_named(job.sharding).reshard;
  if (is_flat && job.method == Method::full) return Dtype::f32;
  return held_parameters(graph, job)[static_cast<std::size_t>(llama.embedding)].dtype;
}

std::vector<std::int64_t> llama_buffers_in_fp32(const Graph& graph, const Job& job) {
  const LlamaGraph llama = llama_graph(graph, job);
  std::vector<std::int64_t> buffers(2 * llama.rope_tables, llama.sizes.rotated_dims / 2);
  if (llama.style.scales_embedding && scale_dtype(graph, job, llama) == Dtype::f32) buffers.push_back(1);
  return buffers;
}

}  // namespace vramfit::eager
