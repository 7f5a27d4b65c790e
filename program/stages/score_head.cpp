#include "program/stages/score_head.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers/index.h"
#include "program/stages/adapters.h"

namespace vramfit {

namespace {

constexpr std::string_view kCopy = "score.modules_to_save.default.weight";

/// With a class of that kind in transformers 5.23 that pools the last token's number.
constexpr std::array<std::string_view, 9> kFamilies{"llama", "mistral", "qwen2",       "qwen3", "phi3",
                                                    "gemma", "gemma2",  "gemma3_text", "gpt2"};

bool reads(const Segment& segment, int parameter) {
  return std::ranges::any_of(segment.ops, [&](const Op& op) {
    return std::ranges::find(op.parameters, parameter, &ParameterUse::parameter) != op.parameters.end();
  });
}

}  // namespace

Graph with_score_head(Graph graph, const ModelSpec& spec, const Job& job) {
  if (std::ranges::find(kFamilies, spec.model_type) == kFamilies.end()) {
    throw NotModelled(fmt::format("a reward model of model_type {}", spec.model_type));
  }
  if (graph.segments.back().role != SegmentRole::loss) throw NotModelled("a reward model with a loss in chunks");
  Segment& head = graph.segments[graph.segments.size() - 2];
  const auto output = std::ranges::find(head.ops, "lm_head", &Op::name);
  for (auto op = output; op != head.ops.end(); ++op) {
    for (const int made : op->outputs) head.values[at(made)].shape.back() = fixed(1);
  }
  graph.segments.back().values.front().shape.back() = fixed(1);
  int& weights = output->parameters.front().parameter;
  const std::int64_t width = graph.parameters[at(weights)].shape.back();
  if (reads(graph.segments.front(), weights)) {  // tied
    weights = static_cast<int>(graph.parameters.size());
    graph.parameters.emplace_back();
  }
  graph.parameters[at(weights)] = {"score.weight", {1, width}};
  if (!has_adapters(job)) return graph;
  graph.parameters[at(weights)].name = "score.original_module.weight";
  weights = static_cast<int>(graph.parameters.size());
  graph.parameters.push_back({std::string(kCopy), {1, width}});
  return graph;
}

bool is_trained_copy(std::string_view parameter) { return parameter == kCopy; }

std::vector<int> score_parameters(const Graph& graph) {
  std::vector<int> list;
  for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
    if (graph.parameters[p].name.starts_with("score.")) list.push_back(static_cast<int>(p));
  }
  return list;
}

}  // namespace vramfit
