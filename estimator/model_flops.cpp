#include "estimator/model_flops.h"

#include <algorithm>

#include "estimator/time_model.h"

namespace vramfit {

namespace {

bool any_of(const std::vector<bool>& flags) { return std::ranges::find(flags, true) != flags.end(); }

/// Backward's products for each of forward's. A linear's input gradient and its weight gradient are one each; attention
/// has no weight, and each of its two products has two inputs.
double backward_factor(const Op& op, const Needs& needs) {
  if (op.parameters.empty()) return any_of(needs.inputs) ? 2 : 0;
  return (any_of(needs.inputs) ? 1 : 0) + (any_of(needs.parameters) ? 1 : 0);
}

}  // namespace

double training_flops(const TapeInputs& inputs) {
  const std::vector<SegmentTape> tapes = make_tapes(inputs);
  double flops = 0;
  for (std::size_t s = 0; s < tapes.size(); ++s) {
    const std::vector<Op>& ops = inputs.graph.segments[s].ops;
    for (const Op& op : ops) flops += forward_flops(inputs.graph, op, inputs.shape);
    for (const TapeAction& action : tapes[s].backward) {
      if (action.what != TapeAction::Do::backward) continue;
      const Op& op = ops[static_cast<std::size_t>(action.op)];
      flops += backward_factor(op, action.needs) * forward_flops(inputs.graph, op, inputs.shape);
    }
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
