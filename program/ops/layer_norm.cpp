#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// y = (x - mean) * rstd * weight + bias. Backward reads x and two fp32 statistics per row.
///
/// CPU: own loops that sum the parameters' gradients in place, without further memory. CUDA: at::native_layer_norm
/// allocates y, mean and rstd, in this order; its backward allocates its own results, which are copied or added into
/// the tape's buffers.
Rule rule_of_layer_norm(const OpContext& context, const Needs& needs) {
  Rule rule;
  rule.saved = {input(0), output(1), output(2)};
  rule.gradients = {{GradientSource::From::fresh, 0}};
  if (!is_cuda(context)) return rule;
  const std::int64_t width = context.input_elements(0) / context.output_elements(1);
  rule.outputs_inside = true;
  rule.forward = {output_step(0), output_step(1), output_step(2)};
  if (wants_input(needs, 0)) {
    rule.backward.push_back(temporary("input_gradient", context.input_elements(0), context.compute()));
  }
  if (wants_parameter(needs, 0)) rule.backward.push_back(temporary("weight_gradient", width, context.compute()));
  if (wants_parameter(needs, 1)) rule.backward.push_back(temporary("bias_gradient", width, context.compute()));
  return rule;
}

/// CUDA: as rms_norm, and the bias's gradient is stored by a call of its own.
OpWork work_of_layer_norm(const OpContext& context, const Needs& needs) {
  return work_of_calls(context, needs, {.passes = 2, .launches = 1}, {.passes = 8, .launches = 6});
}

}  // namespace

const OpRow op_rows::layer_norm{.rule = rule_of_layer_norm, .work = work_of_layer_norm};

}  // namespace vramfit
