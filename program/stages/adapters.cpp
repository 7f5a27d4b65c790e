#include "program/stages/adapters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/numbers/index.h"
#include "base/text/suggest.h"
#include "job/loss/loss_options.h"
#include "job/parameters/glob.h"
#include "program/stages/kept_values.h"
#include "program/stages/score_head.h"

namespace vramfit {

namespace {

constexpr std::size_t kNamedInErrors = 12;
constexpr std::string_view kMagnitudes = ".lora_magnitude_vector";

std::string_view last_part(std::string_view module) { return module.substr(module.rfind('.') + 1); }

/// The linear that makes the logits has no adapter, as with PEFT's "all-linear". All families call it so
/// (model_specs/families/graph_builder.cpp).
bool may_have_adapter(const Op& op) { return op.kind == OpKind::linear && op.name != "lm_head"; }

/// A glob means whole names of modules, or how they end: `q_proj`, `self_attn.*`, `model.layers.3.*`.
bool matches_target(const std::string& glob, std::string_view module) {
  return matches_glob(glob, module) || matches_glob("*." + glob, module);
}

/// Adds adapters to one graph.
class AdapterMaker {
 public:
  AdapterMaker(Graph& graph, const Job& job)
      : graph_(graph),
        lora_(job.lora),
        drops_for_matrix_(job.runtime == Runtime::vramfit && lora_.has_magnitudes && lora_.dropout > 0),
        is_used_(lora_.targets.size()) {}

  void add_to(Segment& segment) {
    std::vector<Op> ops;
    ops.reserve(2 * segment.ops.size());
    std::map<int, int> adapted;  // a linear's output, and what takes its place for the ops that follow
    for (Op& op : segment.ops) {
      for (int& input : op.inputs) {
        if (const auto entry = adapted.find(input); entry != adapted.end()) input = entry->second;
      }
      ops.push_back(std::move(op));
      if (!is_target(ops.back())) continue;
      const Op linear = ops.back();
      ops.push_back(make_op(segment, linear));
      if (drops_for_matrix_) {
        make_dropped(segment, linear, ops.back());
      } else if (lora_.has_magnitudes) {
        ops.push_back(make_magnitude(segment, linear, ops.back()));
      }
      adapted[linear.outputs.front()] = ops.back().outputs.front();
    }
    if (const auto entry = adapted.find(segment.output); entry != adapted.end()) segment.output = entry->second;
    segment.ops = std::move(ops);
  }

  /// Throws InputError if a target has matched nothing.
  void check_targets() const {
    for (std::size_t i = 0; i < is_used_.size(); ++i) {
      if (!is_used_[i]) fail_unmatched(lora_.targets[i]);
    }
  }

 private:
  struct Matrices {
    int a = -1, b = -1, magnitudes = -1;
  };

  bool is_target(const Op& op) {
    if (!may_have_adapter(op)) return false;
    const std::string_view module = module_of(graph_.parameters[at(op.parameters.front().parameter)].name);
    names_.emplace(last_part(module));
    bool matches = lora_.targets.empty();
    for (std::size_t i = 0; i < is_used_.size(); ++i) {
      if (!matches_target(lora_.targets[i], module)) continue;
      matches = is_used_[i] = true;
    }
    return matches;
  }

  Op make_op(Segment& segment, const Op& linear) {
    const Matrices matrices = matrices_of(linear);
    const ParameterUse& weight = linear.parameters.front();
    const int y = linear.outputs.front();
    Op op;
    op.kind = OpKind::lora;
    op.name = linear.name + ".lora";
    op.inputs = {linear.inputs.front(), y};
    op.parameters = {{matrices.a}, {matrices.b, weight.first, weight.count}};
    op.attributes.scale = adapter_scale(lora_);
    op.attributes.dropout = lora_.dropout;
    Value output = segment.values[at(y)], hidden = output, norms = output;
    output.name += ".adapted";
    hidden.name += ".lora_A";
    hidden.shape.back() = fixed(lora_.rank);
    op.outputs = {add_value(segment, std::move(output)), add_value(segment, std::move(hidden))};
    if (!lora_.has_magnitudes) return op;
    op.parameters.push_back(weight);
    op.attributes.transposed_weight = linear.attributes.transposed_weight;
    norms.name += ".norms";
    norms.shape = {norms.shape.back()};
    op.outputs.push_back(add_value(segment, std::move(norms)));
    return op;
  }

  /// Adapter and magnitude in one: with dropout, the magnitudes scale what the matrix makes of what is left of x.
  void make_dropped(Segment& segment, const Op& linear, Op& adapter) {
    const ParameterUse& weight = linear.parameters.front();
    adapter.kind = OpKind::dropped_dora;
    adapter.parameters.insert(adapter.parameters.begin() + 2,
                              {matrices_of(linear).magnitudes, weight.first, weight.count});
    Value sum = segment.values[at(linear.outputs.front())];
    sum.name += ".dropped";
    adapter.outputs.push_back(add_value(segment, std::move(sum)));
  }

  /// Gives the rows of the sum of a matrix and its adapter their lengths. A bias is no part of that.
  Op make_magnitude(Segment& segment, const Op& linear, const Op& adapter) {
    const ParameterUse& weight = linear.parameters.front();
    Op op;
    op.kind = OpKind::magnitude;
    op.name = linear.name + ".magnitude";
    op.inputs = {adapter.outputs[0], adapter.outputs[2]};
    op.parameters = {{matrices_of(linear).magnitudes, weight.first, weight.count}};
    op.parameters.insert(op.parameters.end(), linear.parameters.begin() + 1, linear.parameters.end());
    Value output = segment.values[at(linear.outputs.front())];
    output.name += ".scaled";
    op.outputs = {add_value(segment, std::move(output))};
    return op;
  }

  static int add_value(Segment& segment, Value value) {
    segment.values.push_back(std::move(value));
    return static_cast<int>(segment.values.size()) - 1;
  }

  Matrices matrices_of(const Op& linear) {
    const int weight = linear.parameters.front().parameter;
    Matrices& made = of_weight_[weight];
    if (made.a >= 0) return made;
    const Parameter& matrix = graph_.parameters[at(weight)];
    const bool swapped = linear.attributes.transposed_weight;
    const std::string module(module_of(matrix.name));
    const std::int64_t outputs = matrix.shape.at(swapped ? 1 : 0), inputs = matrix.shape.at(swapped ? 0 : 1);
    made = {.a = static_cast<int>(graph_.parameters.size()), .b = static_cast<int>(graph_.parameters.size()) + 1};
    graph_.parameters.push_back({module + ".lora_A.weight", {lora_.rank, inputs}, Parameter::Init::uniform});
    graph_.parameters.push_back({module + ".lora_B.weight", {outputs, lora_.rank}, Parameter::Init::zeros});
    if (!lora_.has_magnitudes) return made;
    made.magnitudes = made.b + 1;
    graph_.parameters.push_back({module + std::string(kMagnitudes), {outputs}, Parameter::Init::norms});
    return made;
  }

  [[noreturn]] void fail_unmatched(const std::string& target) const {
    std::vector<std::string> names(names_.begin(), names_.end());
    if (names.size() > kNamedInErrors) names.resize(kNamedInErrors);
    throw InputError(
        fmt::format("--lora-targets {}: no linear has such a name; they end in {} (embeddings, norms and the output "
                    "layer have no adapters; --freeze says which of the model's own parameters are trained)",
                    printable(target), fmt::join(names, ", ")));
  }

  Graph& graph_;
  const Lora& lora_;
  bool drops_for_matrix_;
  std::vector<bool> is_used_;    // by target
  std::set<std::string> names_;  // how modules of linears end
  std::map<int, Matrices> of_weight_;
};

}  // namespace

bool has_adapters(const Job& job) { return job.method != Method::full; }

double adapter_scale(const Lora& lora) {
  const auto rank = static_cast<double>(lora.rank);
  return lora.alpha / (lora.rank_stabilized ? std::sqrt(rank) : rank);
}

std::string_view module_of(std::string_view parameter) { return parameter.substr(0, parameter.rfind('.')); }

Graph with_adapters(Graph graph, const Job& job) {
  if (!has_adapters(job)) return graph;
  if (job.lora.rank < 1) throw std::logic_error("adapters without a rank: the job is not resolved");
  AdapterMaker maker(graph, job);
  for (Segment& segment : graph.segments) maker.add_to(segment);
  maker.check_targets();
  return graph;
}

namespace {

/// torchtune's builders of Phi-3 have a matrix for each that is packed into another in the checkpoint
/// (models/phi3/_component_builders.py).
Graph unpacked_graph(ModelSpec spec, const Job& job) {
  spec.model_type = "llama";
  spec.architecture = "LlamaForCausalLM";
  Graph graph = build_graph(spec, loss_options(job));
  graph.is_unpacked = true;
  return graph;
}

}  // namespace

Graph training_graph(const ModelSpec& spec, const Job& job) {
  const bool is_unpacked = job.modeling == Modeling::torchtune && spec.model_type == "phi3";
  Graph graph = is_unpacked ? unpacked_graph(spec, job) : build_graph(spec, loss_options(job));
  if (job.runtime == Runtime::vramfit && has_experts(graph)) {
    throw NotModelled("experts (model_type " + spec.model_type + ") in this project's engine");
  }
  if (is_classifier(job)) graph = with_score_head(std::move(graph), spec, job);
  graph = with_adapters(std::move(graph), job);
  require_kept_kinds(graph, job.checkpointing);
  return graph;
}

std::size_t adapter_uses(const Op& op) {
  return op.kind == OpKind::lora ? 2 : op.kind == OpKind::magnitude ? 1 : op.kind == OpKind::dropped_dora ? 3 : 0;
}

std::vector<bool> adapter_parameters(const Graph& graph) {
  std::vector<bool> parameters(graph.parameters.size(), false);
  for (const Segment& segment : graph.segments) {
    for (const Op& op : segment.ops) {
      for (std::size_t p = 0; p < adapter_uses(op); ++p) parameters[at(op.parameters[p].parameter)] = true;
    }
  }
  return parameters;
}

std::string_view adapted_module(std::string_view parameter) {
  const std::string_view module = module_of(parameter);
  return parameter.ends_with(kMagnitudes) ? module : module_of(module);
}

std::vector<ScaledMatrix> scaled_matrices(const Graph& graph) {
  std::vector<ScaledMatrix> matrices;
  for (const Segment& segment : graph.segments) {
    for (std::size_t i = 1; i < segment.ops.size(); ++i) {
      const Op &op = segment.ops[i], &before = segment.ops[i - 1];
      if (op.kind == OpKind::dropped_dora) {
        matrices.push_back({.magnitudes = op.parameters[2].parameter,
                            .matrix = op.parameters[3].parameter,
                            .is_transposed = op.attributes.transposed_weight});
      }
      if (op.kind != OpKind::magnitude) continue;
      matrices.push_back({.magnitudes = op.parameters[0].parameter,
                          .matrix = before.parameters[2].parameter,
                          .is_transposed = before.attributes.transposed_weight});
    }
  }
  return matrices;
}

}  // namespace vramfit
