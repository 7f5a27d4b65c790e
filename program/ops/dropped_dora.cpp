#include <algorithm>

#include "program/ops/lora.h"
#include "program/ops/magnitude.h"
#include "program/ops/rules.h"

namespace vramfit {

std::int64_t dropped_dora_forward_scratch(const OpContext& context) {
  if (context.compute() == Dtype::f32) return 0;
  const LoraSizes s = lora_sizes(context);
  return std::max({product_elements({s.tokens, s.rank, s.inputs}), product_elements({s.tokens, s.outputs, s.inputs}),
                   product_elements({s.tokens, s.outputs, s.rank})});
}

std::int64_t dropped_dora_backward_scratch(const OpContext& context, const Needs& needs) {
  if (context.compute() == Dtype::f32) return 0;
  const LoraSizes s = lora_sizes(context);
  const std::int64_t of_matrix = wants_input(needs, 0) ? product_elements({s.tokens, s.inputs, s.outputs}) : 0;
  return std::max({product_elements({s.tokens, s.rank, s.outputs}),
                   product_elements({s.outputs, s.rank, s.tokens, true}),
                   product_elements({s.rank, s.inputs, s.tokens, true}), product_elements({s.tokens, s.inputs, s.rank}),
                   of_matrix});
}

namespace {

bool wants_b(const Needs& needs) { return wants_parameter(needs, 1); }
bool wants_magnitude(const Needs& needs) { return wants_parameter(needs, 2); }

bool has_scratch(const OpContext& context) { return !is_cuda(context) && context.compute() != Dtype::f32; }

/// What the magnitudes' gradient is summed in, and what it makes of them.
void add_sums(const OpContext& context, std::vector<Step>& steps) {
  const LoraSizes s = lora_sizes(context);
  const std::int64_t tokens = summed_tokens(s.tokens, s.outputs);
  steps.push_back(temporary("rows", checked_mul(tokens, s.outputs), Dtype::f32));
  steps.push_back(temporary("ones", tokens, Dtype::f32));
  steps.push_back(temporary("sums", s.outputs, Dtype::f32));
}

void add_backward(const OpContext& context, const Needs& needs, std::vector<Step>& steps) {
  const LoraSizes s = lora_sizes(context);
  const bool wants_hidden = wants_hidden_gradient(needs);
  if (has_scratch(context)) {
    steps.push_back(temporary("product", dropped_dora_backward_scratch(context, needs), Dtype::f32));
  }
  if (is_cuda(context)) {
    steps.push_back(temporary("factors", s.outputs, Dtype::f32));
    if (wants_magnitude(needs)) add_sums(context, steps);
  }
  if (wants_b(needs) || wants_hidden) steps.push_back(temporary("B, scaled", s.outputs * s.rank, context.compute()));
  if (!wants_hidden) return;
  steps.push_back(temporary("hidden gradient", context.output_elements(1), context.compute()));
  add_dropout(context, steps);
  if (wants_input(needs, 0)) {
    steps.push_back(temporary("changed gradient", context.output_elements(0), context.compute()));
  }
}

/// y + (f - 1) W x' + f h B^T in place of y, with x' = dropout(x), h = scale * x' A^T and f = m / norms, which are
/// constants of backward: what PEFT computes, whose linear multiplies x as it is. Backward reads x for A's gradient, h
/// for B's, and for that of m the sum W x' + h B^T, which is kept.
Rule rule_of_dropped_dora(const OpContext& context, const Needs& needs) {
  const LoraSizes s = lora_sizes(context);
  Rule rule;
  rule.in_place_input = 1;
  rule.gradients = {{GradientSource::From::fresh, 0}, {GradientSource::From::pass_through, 0}};
  if (wants_parameter(needs, 0)) rule.saved.push_back(input(0));
  if (wants_b(needs)) rule.saved.push_back(output(1));
  const bool reads_factors = wants_b(needs) || wants_hidden_gradient(needs) || wants_magnitude(needs);
  if (reads_factors) rule.saved.push_back(output(2));
  if (wants_magnitude(needs)) rule.saved.push_back(output(3));
  if (has_scratch(context)) {
    rule.forward.push_back(temporary("product", dropped_dora_forward_scratch(context), Dtype::f32));
  }
  add_dropout(context, rule.forward);
  add_norms(context, rule.forward);
  if (is_cuda(context)) {
    rule.forward.push_back(temporary("factors", s.outputs, Dtype::f32));
    rule.forward.push_back(temporary("changes", s.outputs, Dtype::f32));
  }
  rule.forward.push_back(temporary("B, scaled", s.outputs * s.rank, context.compute()));
  if (reads_factors) add_backward(context, needs, rule.backward);
  return rule;
}

/// Passes over as many elements as the output has.
Work passes_work(const OpContext& context, double passes, std::int64_t launches) {
  const auto width = static_cast<double>(dtype_bytes(context.compute()).n);
  return {.launches = is_cuda(context) ? launches : 1,
          .bytes = passes * width * static_cast<double>(context.output_elements(0))};
}

OpWork work_of_dropped_dora(const OpContext& context, const Needs& needs) {
  constexpr std::int64_t kForwardCalls = 6, kCallsOfPart = 4, kOtherCalls = 6;
  const LoraSizes s = lora_sizes(context);
  OpWork work;
  const auto add = [&](std::vector<Work>& list, const WorkShape& shape) {
    list.push_back(adapter_product_work(context, shape));
  };
  work.forward.push_back(dropout_work(context));
  add(work.forward, {s.tokens, s.rank, s.inputs});
  add(work.forward, {s.tokens, s.outputs, s.inputs});
  add(work.forward, {s.tokens, s.outputs, s.rank});
  add(work.forward, {s.tokens, s.outputs, s.rank});
  add_norms_work(context, work.forward);
  work.forward.push_back(passes_work(context, 3, kForwardCalls));
  if (wants_magnitude(needs)) {
    const std::int64_t parts = ceil_div(s.tokens, summed_tokens(s.tokens, s.outputs));
    work.backward.push_back(passes_work(context, is_cuda(context) ? 9 : 2, kOtherCalls + kCallsOfPart * parts));
  }
  if (wants_b(needs)) add(work.backward, {s.outputs, s.rank, s.tokens});
  if (wants_hidden_gradient(needs)) add(work.backward, {s.tokens, s.rank, s.outputs});
  if (wants_parameter(needs, 0)) {
    work.backward.push_back(dropout_work(context));
    add(work.backward, {s.rank, s.inputs, s.tokens});
  }
  if (!wants_input(needs, 0)) return work;
  work.backward.push_back(passes_work(context, 2, 2));
  add(work.backward, {s.tokens, s.inputs, s.outputs});
  add(work.backward, {s.tokens, s.inputs, s.rank});
  work.backward.push_back(dropout_work(context));
  return work;
}

}  // namespace

const OpRow op_rows::dropped_dora{.rule = rule_of_dropped_dora,
                                  .work = work_of_dropped_dora,
                                  .model_flops = flops_of_adapter,
                                  .transposable = 3,
                                  .has_own_kernel = true};

}  // namespace vramfit
