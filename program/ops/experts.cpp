#include "program/model_flops.h"
#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// Of this project's engine there are none: training_graph() refuses mixtures for it.
Rule rule_of_experts(const OpContext& /*context*/, const Needs& /*needs*/) {
  Rule rule;
  rule.saved = {input(0)};
  return rule;
}

/// The router's product of all rows, and each row's products with the experts that it is sent to.
double flops_of_experts(const Graph& graph, const Op& op, const BatchShape& shape) {
  const auto elements = [&](std::size_t parameter) {
    return static_cast<double>(
        element_count(graph.parameters[static_cast<std::size_t>(op.parameters[parameter].parameter)]));
  };
  const auto experts =
      static_cast<double>(graph.parameters[static_cast<std::size_t>(op.parameters.front().parameter)].shape.front());
  const double share = static_cast<double>(op.attributes.experts_per_token) / experts;
  const auto tokens = static_cast<double>(shape.batch) * static_cast<double>(shape.sequence);
  return 2 * tokens * (elements(0) + share * (elements(1) + elements(2)));
}

}  // namespace

const OpRow op_rows::experts{.rule = rule_of_experts, .model_flops = flops_of_experts};

}  // namespace vramfit
