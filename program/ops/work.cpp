#include "program/model_flops.h"
#include "program/ops/rules.h"

namespace vramfit {

double bytes_of(const OpContext& context) {
  const Op& op = context.op;
  double elements = op.kind == OpKind::embedding ? 0 : used_parameter_elements(context.graph, op);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    elements += static_cast<double>(context.input_elements(static_cast<int>(i)));
  }
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    elements += static_cast<double>(context.output_elements(static_cast<int>(i)));
  }
  return elements * static_cast<double>(dtype_bytes(context.compute()).n);
}

OpWork work_of_passes(const OpContext& context, const Needs& needs) {
  const double bytes = bytes_of(context);
  OpWork work{.forward = {{.bytes = bytes}}, .backward = {}};
  if (needs.any()) work.backward = {{.launches = 2, .bytes = 2 * bytes}};
  return work;
}

OpWork work_of_calls(const OpContext& context, const Needs& needs, const Calls& forward, const Calls& backward) {
  if (!is_cuda(context)) return work_of_passes(context, needs);
  const double pass =
      static_cast<double>(context.output_elements(0)) * static_cast<double>(dtype_bytes(context.compute()).n);
  OpWork work{.forward = {{.launches = forward.launches, .bytes = forward.passes * pass}}, .backward = {}};
  if (needs.any()) work.backward = {{.launches = backward.launches, .bytes = backward.passes * pass}};
  return work;
}

}  // namespace vramfit
