#include "program/model_flops.h"
#include "program/ops/fp8.h"
#include "program/ops/rules.h"

namespace vramfit {

std::int64_t linear_forward_scratch(const OpContext& context) {
  if (context.compute() == Dtype::f32) return 0;
  const std::int64_t tokens = context.tokens();
  return product_elements({tokens, context.output_elements(0) / tokens, context.input_elements(0) / tokens});
}

std::int64_t linear_backward_scratch(const OpContext& context, bool wants_x, bool wants_weight) {
  if (context.compute() == Dtype::f32) return 0;
  const std::int64_t tokens = context.tokens();
  const std::int64_t inputs = context.input_elements(0) / tokens, outputs = context.output_elements(0) / tokens;
  const bool swapped = context.op.attributes.transposed_weight;
  const ProductShape weight{swapped ? inputs : outputs, swapped ? outputs : inputs, tokens, true};
  return std::max(wants_x ? product_elements({tokens, inputs, outputs}) : 0,
                  wants_weight ? product_elements(weight) : 0);
}

namespace {

void add_cpu_product(const OpContext& context, const Needs& needs, Rule& rule) {
  rule.forward.push_back(temporary("product", linear_forward_scratch(context), Dtype::f32));
  const std::int64_t backward = linear_backward_scratch(context, wants_input(needs, 0), wants_parameter(needs, 0));
  if (backward > 0) rule.backward.push_back(temporary("product", backward, Dtype::f32));
}

/// y = x W^T + b. In backward only the weight's gradient reads x, so a frozen linear saves nothing; the weight is
/// gathered again and never saved. Both products are written or added directly into the tape's buffers (mm_out,
/// addmm_), without a temporary gradient.
///
/// CUDA: the bias gradient is a product with a row of ones, because a sum over rows would take a reduce buffer that
/// grows with the SM count. CPU: an own column sum.
Rule rule_of_linear(const OpContext& context, const Needs& needs) {
  if (multiplies_in_fp8(context)) return rule_of_fp8_linear(context, needs);
  Rule rule;
  if (wants_parameter(needs, 0)) rule.saved = {input(0)};
  rule.gradients = {{GradientSource::From::fresh, 0}};
  if (is_cuda(context) && wants_parameter(needs, 1)) {
    rule.backward = {temporary("ones", context.tokens(), context.compute())};
  }
  if (!is_cuda(context) && context.compute() != Dtype::f32) add_cpu_product(context, needs, rule);
  return rule;
}

/// Of a product in FP8: whether its factors are transposed for it, and whether the left one's scale is known.
struct Fp8Orders {
  bool transposes_left = false, transposes_right = false, has_left_scale = false;
};

/// A product in forward, and in backward one for each of the gradients of input and weight that is needed. Each reads
/// two of input, weight and output and writes the third. FP8 operands are cast before; the output's gradient has one
/// scale in both products.
OpWork work_of_linear(const OpContext& context, const Needs& needs) {
  const bool is_fp8 = multiplies_in_fp8(context);
  const std::int64_t tokens = context.tokens();
  const std::int64_t inputs = context.input_elements(0) / tokens, outputs = context.output_elements(0) / tokens;
  OpWork work;
  const auto cast = [&](std::vector<Work>& list, const Fp8Factor& factor) {
    for (const Work& one : work_of_fp8_cast(context, factor)) list.push_back(one);
  };
  const auto add = [&](std::vector<Work>& list, const WorkShape& shape, const Fp8Orders& orders) {
    if (is_fp8) {
      const auto inner = static_cast<double>(shape.inner);
      cast(list, {static_cast<double>(shape.rows) * inner, orders.transposes_left, orders.has_left_scale});
      cast(list, {static_cast<double>(shape.columns) * inner, orders.transposes_right});
    }
    list.push_back({.unit = Work::Unit::product,
                    .dtype = is_fp8 && is_cuda(context) ? Dtype::f8_e4m3 : context.compute(),
                    .flops = forward_flops(context.graph, context.op, context.shape),
                    .bytes = bytes_of(context),
                    .shape = shape});
  };
  const bool wants_x = wants_input(needs, 0);
  add(work.forward, {tokens, outputs, inputs}, {});
  if (wants_x) add(work.backward, {tokens, inputs, outputs}, {.transposes_right = true});
  if (wants_parameter(needs, 0)) {
    add(work.backward, {outputs, inputs, tokens}, {true, true, /*has_left_scale=*/wants_x});
  }
  return work;
}

}  // namespace

const OpRow op_rows::linear{.rule = rule_of_linear,
                            .work = work_of_linear,
                            .model_flops = flops_of_product,
                            .quantizes_weight = true,
                            .adds_bias_in_product = true};

}  // namespace vramfit
