#include "model_specs/graph.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "model_specs/families/families.h"

namespace vramfit {

std::int64_t resolve(const Dim& dim, const BatchShape& shape) {
  std::int64_t size = dim.factor;
  if (dim.batch) size = checked_mul(size, shape.batch);
  if (dim.sequence) size = checked_mul(size, shape.sequence);
  return size;
}

std::int64_t element_count(const Value& value, const BatchShape& shape) {
  std::int64_t count = 1;
  for (const Dim& dim : value.shape) count = checked_mul(count, resolve(dim, shape));
  return count;
}

std::int64_t element_count(const Parameter& parameter) {
  std::int64_t count = 1;
  for (const std::int64_t dim : parameter.shape) count = checked_mul(count, dim);
  return count;
}

bool has_experts(const Graph& graph) {
  return std::ranges::any_of(graph.segments, [](const Segment& segment) {
    return std::ranges::find(segment.ops, OpKind::experts, &Op::kind) != segment.ops.end();
  });
}

std::string_view op_name(OpKind kind) {
  static constexpr std::array<std::string_view, kOpKinds> kNames{
#define OP(name) #name,
#include "model_specs/ops.def"
#undef OP
  };
  return kNames.at(static_cast<std::size_t>(kind));
}

Graph build_graph(const ModelSpec& spec, const LossOptions& loss) {
  if (!spec.tensors.empty()) throw NotModelled("models of model_type " + spec.model_type);
  const Family& family = find_family(spec.model_type);
  if (family.graph == nullptr) throw NotModelled("models of model_type " + spec.model_type);
  if (spec.architecture != family.classes.front()) {
    throw NotModelled("training of class " + spec.architecture +
                      " (of this family: " + std::string(family.classes.front()) + ")");
  }
  if (!spec.graph_lacks.empty()) throw NotModelled(spec.graph_lacks);
  // MXFP4 is trained as the bf16 that transformers' Mxfp4Config(dequantize=True) makes of it.
  const bool is_dequantized = spec.quantization == "mxfp4" && spec.model_type == "gpt_oss";
  if (!spec.quantization.empty() && !is_dequantized) {
    throw NotModelled("training of weights quantized with " + spec.quantization);
  }
  for (const Rope& rope : {spec.rope, spec.local_rope}) {
    if (rope.scaling == Rope::Scaling::other) throw NotModelled("rope scaling " + rope.scaling_name);
  }
  Graph graph = family.graph(spec, loss);
  graph.dropout.attention = spec.attention_dropout;
  graph.library_attention = spec.library_attention;
  return graph;
}

}  // namespace vramfit
