// Writes the graph of a config.json as JSON, for the interpreter in graph_semantics.py: every number an op reads.
// Usage: dump_graph CONFIG CHUNKS
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model_specs/config.h"
#include "model_specs/graph.h"

namespace {

using nlohmann::json;
using vramfit::Activation;
using vramfit::Graph;
using vramfit::Op;
using vramfit::ParameterUse;
using vramfit::Rope;
using vramfit::Segment;

const char* name(Activation activation) {
  switch (activation) {
    case Activation::silu:
      return "silu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::gelu_erf:
      return "gelu_erf";
    case Activation::relu:
      return "relu";
  }
  return "unknown";
}

json describe(const Op& op) {
  const vramfit::Attributes& a = op.attributes;
  json uses = json::array();
  for (const ParameterUse& use : op.parameters) uses.push_back({use.parameter, use.first, use.count});
  return {{"kind", vramfit::op_name(op.kind)},
          {"name", op.name},
          {"inputs", op.inputs},
          {"outputs", op.outputs},
          {"parameters", uses},
          {"eps", a.eps},
          {"scale", a.scale},
          {"softcap", a.softcap},
          {"groups", a.groups},
          {"heads", a.heads},
          {"kv_heads", a.kv_heads},
          {"head_dim", a.head_dim},
          {"window", a.window},
          {"causal", a.causal},
          {"weight_plus_one", a.weight_plus_one},
          {"transposed_weight", a.transposed_weight},
          {"activation", name(a.activation)},
          {"rope_table", a.rope_table},
          {"chunks", a.chunks}};
}

json describe(const Segment& segment) {
  json ops = json::array();
  for (const Op& op : segment.ops) ops.push_back(describe(op));
  return {{"name", segment.name}, {"ops", ops}, {"output", segment.output}, {"labels", segment.labels}};
}

json describe(const Rope& rope, std::int64_t dims) {
  return {{"theta", rope.theta},
          {"dims", dims},
          {"linear", rope.scaling == Rope::Scaling::linear},
          {"llama3", rope.scaling == Rope::Scaling::llama3},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original", rope.original_max_position_embeddings}};
}

json describe(const Graph& graph) {
  json out;
  for (const Segment& segment : graph.segments) out["segments"].push_back(describe(segment));
  for (const vramfit::Parameter& parameter : graph.parameters) out["parameters"].push_back(parameter.name);
  out["ropes"] = json::array();
  for (std::size_t i = 0; i < graph.ropes.size(); ++i) {
    out["ropes"].push_back(describe(graph.ropes[i], graph.rope_dims[i]));
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const vramfit::ModelSpec spec = vramfit::parse_config(text, argv[1]);
  fmt::print("{}\n", describe(vramfit::build_graph(spec, {.chunks = std::stoll(argv[2])})).dump());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
