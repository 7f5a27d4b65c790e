#include "program/model_flops.h"

#include <algorithm>

#include "program/ops/op_row.h"

namespace vramfit {

namespace {

bool input_wants(const Op& op, const std::vector<bool>& wants_gradient) {
  return std::ranges::any_of(op.inputs, [&](int value) { return wants_gradient[static_cast<std::size_t>(value)]; });
}

bool parameter_wants(const Op& op, const std::vector<bool>& trainable) {
  return std::ranges::any_of(
      op.parameters, [&](const ParameterUse& use) { return trainable[static_cast<std::size_t>(use.parameter)]; });
}

bool is_differentiated(const Op& op, const std::vector<bool>& wants_gradient, const std::vector<bool>& trainable) {
  return input_wants(op, wants_gradient) || parameter_wants(op, trainable);
}

/// Backward's products for each of forward's. A linear's input gradient and its weight gradient are one each; attention
/// has no weight, and each of its two products has two inputs.
double backward_products(const Op& op, const std::vector<bool>& wants_gradient, const std::vector<bool>& trainable) {
  const bool input = input_wants(op, wants_gradient);
  if (op.parameters.empty()) return input ? 2 : 0;
  return (input ? 1 : 0) + (parameter_wants(op, trainable) ? 1 : 0);
}

}  // namespace

double attended_rows(const Attributes& attributes, double sequence) {
  const double window = attributes.window > 0 ? std::min(static_cast<double>(attributes.window), sequence) : sequence;
  if (!attributes.causal) return window;
  return window - window * window / (2 * sequence);  // the first `window` queries see fewer
}

double used_parameter_elements(const Graph& graph, const Op& op) {
  if (op.parameters.empty()) return 0;
  const ParameterUse& use = op.parameters.front();
  const Parameter& parameter = graph.parameters[static_cast<std::size_t>(use.parameter)];
  const auto whole = static_cast<double>(element_count(parameter));
  if (use.count < 0) return whole;
  const std::size_t output_dim = op.attributes.transposed_weight ? 1 : 0;
  return whole * static_cast<double>(use.count) / static_cast<double>(parameter.shape.at(output_dim));
}

double flops_of_product(const Graph& graph, const Op& op, const BatchShape& shape) {
  const auto tokens = static_cast<double>(shape.batch) * static_cast<double>(shape.sequence);
  return 2 * tokens * used_parameter_elements(graph, op);
}

double flops_of_attention(const Graph& /*graph*/, const Op& op, const BatchShape& shape) {
  const auto tokens = static_cast<double>(shape.batch) * static_cast<double>(shape.sequence);
  const Attributes& a = op.attributes;
  const auto width = static_cast<double>(a.heads) * static_cast<double>(a.head_dim);
  return 4 * tokens * attended_rows(a, static_cast<double>(shape.sequence)) * width;  // QK^T and PV
}

double forward_flops(const Graph& graph, const Op& op, const BatchShape& shape) {
  const auto count = op_row(op.kind).model_flops;
  return count == nullptr ? 0 : count(graph, op, shape);
}

double forward_flops(const Graph& graph, const BatchShape& shape) {
  double flops = 0;
  for (const Segment& segment : graph.segments) {
    for (const Op& op : segment.ops) flops += forward_flops(graph, op, shape);
  }
  return flops;
}

double training_flops(const Graph& graph, const std::vector<bool>& trainable, const BatchShape& shape) {
  double flops = 0;
  bool output_wants_gradient = false;  // of the segment before
  for (const Segment& segment : graph.segments) {
    std::vector<bool> wants_gradient(segment.values.size(), false);
    wants_gradient[static_cast<std::size_t>(segment.input)] = output_wants_gradient;
    for (const Op& op : segment.ops) {
      const double products = backward_products(op, wants_gradient, trainable);
      flops += (1 + products) * forward_flops(graph, op, shape);
      if (!is_differentiated(op, wants_gradient, trainable)) continue;
      wants_gradient[static_cast<std::size_t>(op.outputs.front())] = true;
    }
    output_wants_gradient = wants_gradient[static_cast<std::size_t>(segment.output)];
  }
  return flops;
}

double peak_flops(const Card& card, Dtype compute) {
  if (card.device.kind == DeviceKind::cpu) return 0;
  // A card without bf16 units runs bf16 at its fp32 rate; its 16-bit figure is fp16's (configs/gpus.json).
  const bool matrix_units = compute != Dtype::f32 && (compute != Dtype::bf16 || card.bf16);
  return matrix_units ? card.bf16_flops : card.fp32_flops;
}

const Card* card_with_cuda_name(std::string_view name) {
  const auto found = std::ranges::find_if(
      card_catalog(), [&](const Card& card) { return !card.cuda_name.empty() && card.cuda_name == name; });
  return found == card_catalog().end() ? nullptr : &*found;
}

}  // namespace vramfit
