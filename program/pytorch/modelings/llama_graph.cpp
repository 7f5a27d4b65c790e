#include "program/pytorch/modelings/llama_graph.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "job/fields/job_fields.h"

namespace vramfit::eager {

namespace {

constexpr std::array kBlockOps{OpKind::rms_norm, OpKind::linear,    OpKind::linear, OpKind::linear, OpKind::rope,
                               OpKind::rope,     OpKind::attention, OpKind::linear, OpKind::add,    OpKind::rms_norm,
                               OpKind::linear,   OpKind::linear,    OpKind::glu,    OpKind::linear, OpKind::add};

/// With norms of queries and keys, as in Qwen3.
constexpr std::array kNormedBlockOps{
    OpKind::rms_norm, OpKind::linear, OpKind::linear,    OpKind::linear, OpKind::rms_norm, OpKind::rms_norm,
    OpKind::rope,     OpKind::rope,   OpKind::attention, OpKind::linear, OpKind::add,      OpKind::rms_norm,
    OpKind::linear,   OpKind::linear, OpKind::glu,       OpKind::linear, OpKind::add};

/// A segment's ops without adapters, and the adapter of each.
struct Ops {
  std::vector<Op> all;
  std::vector<const Op*> adapters;  // null: none
};

Ops ops_of(const Segment& segment) {
  Ops ops;
  for (const Op& op : segment.ops) {
    if (op.kind == OpKind::lora) {
      ops.adapters.back() = &op;
    } else {
      ops.all.push_back(op);
      ops.adapters.push_back(nullptr);
    }
  }
  return ops;
}

/// Kinds of a segment's ops, in order, and of parameters whole ones.
void require_ops(const Job& job, const std::vector<Op>& ops, const auto& kinds) {
  if (!std::ranges::equal(ops, kinds, {}, &Op::kind)) refuse_model(job, "a model other than Llama");
  for (const Op& op : ops) {
    for (const ParameterUse& use : op.parameters) {
      if (use.count != -1) refuse_model(job, "packed matrices");
    }
    const Attributes& a = op.attributes;
    if (a.window != 0) refuse_model(job, "sliding windows");
    if (a.softcap != 0 || a.weight_plus_one || a.transposed_weight || !a.causal || a.activation != Activation::silu ||
        (a.groups != 1 && op.kind != OpKind::rms_norm)) {
      refuse_model(job, "a model other than Llama");
    }
  }
}

int parameter_of(const std::vector<Op>& ops, std::size_t op) { return ops[op].parameters.front().parameter; }

LlamaLinear linear_of(const Ops& ops, std::size_t op) {
  const std::vector<ParameterUse>& uses = ops.all[op].parameters;
  LlamaLinear linear{.weight = uses.front().parameter, .bias = uses.size() > 1 ? uses[1].parameter : -1};
  if (const Op* const adapter = ops.adapters[op]; adapter != nullptr) {
    linear.lora_a = adapter->parameters[0].parameter;
    linear.lora_b = adapter->parameters[1].parameter;
  }
  return linear;
}

}  // namespace

void refuse_model(const Job& job, const std::string& what) {
  throw NotModelled("modeling " + job_field_named("modeling").get(job) + " of " + what);
}

LlamaGraph llama_graph(const Graph& graph, const Job& job) {
  const std::size_t n = graph.segments.size();
  if (n < 4 || graph.masked_lm || graph.ropes.size() != 1) refuse_model(job, "a model other than Llama");
  const Segment& first = graph.segments.front();
  const Segment& head = graph.segments[n - 2];
  require_ops(job, first.ops, std::array{OpKind::embedding});
  require_ops(job, head.ops, std::array{OpKind::rms_norm, OpKind::linear});
  require_ops(job, graph.segments[n - 1].ops, std::array{OpKind::cross_entropy});
  LlamaGraph llama;
  for (std::size_t s = 1; s + 2 < n; ++s) {
    const Segment& segment = graph.segments[s];
    const Ops ops = ops_of(segment);
    const bool has_norms = ops.all.size() == kNormedBlockOps.size();
    has_norms ? require_ops(job, ops.all, kNormedBlockOps) : require_ops(job, ops.all, kBlockOps);
    const std::size_t more = kNormedBlockOps.size() - kBlockOps.size(), rest = has_norms ? more : 0;
    llama.blocks.push_back({.name = segment.name,
                            .q = linear_of(ops, 1),
                            .k = linear_of(ops, 2),
                            .v = linear_of(ops, 3),
                            .o = linear_of(ops, 7 + rest),
                            .gate = linear_of(ops, 10 + rest),
                            .up = linear_of(ops, 11 + rest),
                            .down = linear_of(ops, 13 + rest),
                            .attention_norm = parameter_of(ops.all, 0),
                            .ffn_norm = parameter_of(ops.all, 9 + rest),
                            .q_norm = has_norms ? parameter_of(ops.all, 4) : -1,
                            .k_norm = has_norms ? parameter_of(ops.all, 5) : -1});
  }
  llama.embedding = parameter_of(first.ops, 0);
  llama.norm = parameter_of(head.ops, 0);
  llama.output = parameter_of(head.ops, 1);
  if (head.ops[1].parameters.size() > 1) refuse_model(job, "a model whose output has a bias");
  const auto shape = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape; };
  const auto attention_op = std::ranges::find(graph.segments[1].ops, OpKind::attention, &Op::kind);
  const Attributes& attention = attention_op->attributes;
  llama.sizes = {.batch = job.micro_batch,
                 .sequence = job.sequence,
                 .hidden = shape(llama.embedding)[1],
                 .heads = attention.heads,
                 .kv_heads = attention.kv_heads,
                 .head_dim = attention.head_dim,
                 .ffn = shape(llama.blocks.front().gate.weight)[0],
                 .vocabulary = shape(llama.embedding)[0],
                 .lora_rank = job.lora.rank};
  return llama;
}

}  // namespace vramfit::eager
