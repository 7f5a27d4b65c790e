#include "program/ops/lora.h"

#include <algorithm>
#include <span>

#include "program/model_flops.h"
#include "program/ops/rules.h"

namespace vramfit {

LoraSizes lora_sizes(const OpContext& context) {
  const std::int64_t tokens = context.tokens();
  return {.tokens = tokens,
          .inputs = context.input_elements(0) / tokens,
          .outputs = context.output_elements(0) / tokens,
          .rank = context.output_elements(1) / tokens};
}

std::int64_t lora_forward_scratch(const OpContext& context) {
  if (context.compute() == Dtype::f32) return 0;
  const LoraSizes s = lora_sizes(context);
  return std::max(product_elements({s.tokens, s.rank, s.inputs}), product_elements({s.tokens, s.outputs, s.rank}));
}

std::int64_t lora_backward_scratch(const OpContext& context) {
  if (context.compute() == Dtype::f32) return 0;
  const LoraSizes s = lora_sizes(context);
  return std::max(
      {product_elements({s.tokens, s.rank, s.outputs}), product_elements({s.outputs, s.rank, s.tokens, true}),
       product_elements({s.rank, s.inputs, s.tokens, true}), product_elements({s.tokens, s.inputs, s.rank})});
}

bool wants_hidden_gradient(const Needs& needs) { return wants_input(needs, 0) || wants_parameter(needs, 0); }

std::int64_t dropout_part(const OpContext& context) { return std::min(context.input_elements(0), kDropoutPart); }

bool has_norms(const OpContext& context) { return context.op.outputs.size() > 2; }

std::int64_t norm_rows(const OpContext& context) {
  const LoraSizes s = lora_sizes(context);
  return std::clamp<std::int64_t>(kSquaredPart / s.inputs, 1, s.outputs);
}

namespace {

bool drops(const OpContext& context) { return context.op.attributes.dropout > 0; }

}  // namespace

/// The input with its dropped elements, and on CUDA the numbers that decide about them.
void add_dropout(const OpContext& context, std::vector<Step>& steps) {
  if (!drops(context)) return;
  steps.push_back(temporary("dropped", context.input_elements(0), context.compute()));
  if (!is_cuda(context) || uses_own_kernel(context)) return;
  for (const char* const name : {"dropout: words", "dropout: bits"}) {
    steps.push_back(temporary(name, dropout_part(context), Dtype::i64));
  }
}

/// On CUDA, squares of W + scale * B A row by row, and their sums by a product with ones, because a reduction's buffer
/// would depend on the GPU. CPU's loops keep nothing.
void add_norms(const OpContext& context, std::vector<Step>& steps) {
  if (!has_norms(context) || !is_cuda(context)) return;
  const LoraSizes s = lora_sizes(context);
  const std::int64_t rows = norm_rows(context);
  steps.push_back(temporary("squares", s.outputs, Dtype::f32));
  steps.push_back(temporary("rows", checked_mul(rows, s.inputs), Dtype::f32));
  steps.push_back(temporary("ones", s.inputs, Dtype::f32));
  if (context.compute() == Dtype::f32) return;
  steps.push_back(temporary("A", s.rank * s.inputs, Dtype::f32));
  steps.push_back(temporary("B", rows * s.rank, Dtype::f32));
}

Work adapter_product_work(const OpContext& context, const WorkShape& shape) {
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns),
             inner = static_cast<double>(shape.inner);
  const auto width = static_cast<double>(dtype_bytes(context.compute()).n);
  return {.unit = Work::Unit::product,
          .dtype = context.compute(),
          .flops = 2 * rows * columns * inner,
          .bytes = (rows * inner + inner * columns + rows * columns) * width,
          .shape = shape};
}

/// A copy of the input, and its mask: on CUDA 16 calls for each part, nearly all over numbers of 8 bytes.
Work dropout_work(const OpContext& context) {
  const auto elements = static_cast<double>(context.input_elements(0));
  const auto width = static_cast<double>(dtype_bytes(context.compute()).n);
  if (uses_own_kernel(context)) return {.bytes = 2 * elements * width};
  if (!is_cuda(context)) return {.bytes = 4 * elements * width};
  constexpr std::int64_t kCalls = 16;
  const std::int64_t parts = ceil_div(context.input_elements(0), dropout_part(context));
  return {.launches = 1 + kCalls * parts, .bytes = elements * (6 * width + 14.0 * 16)};
}

/// B A, and on CUDA six more calls for each part: two copies, a square and a sum of four and eight bytes an element.
void add_norms_work(const OpContext& context, std::vector<Work>& work) {
  if (!has_norms(context)) return;
  const LoraSizes s = lora_sizes(context);
  const double elements = static_cast<double>(s.outputs) * static_cast<double>(s.inputs);
  const auto width = static_cast<double>(dtype_bytes(context.compute()).n);
  work.push_back({.unit = Work::Unit::product,
                  .dtype = Dtype::f32,
                  .flops = 2 * elements * static_cast<double>(s.rank),
                  .bytes = elements * (is_cuda(context) ? 8 : width),
                  .shape = {s.outputs, s.inputs, s.rank}});
  if (!is_cuda(context)) return;
  constexpr std::int64_t kCalls = 5, kOnce = 4;
  constexpr double kFp32Bytes = 16;  // written, squared in place, read
  work.push_back(
      {.launches = kOnce + kCalls * ceil_div(s.outputs, norm_rows(context)), .bytes = elements * (width + kFp32Bytes)});
}

namespace {

/// y + h B^T in place of y, with h = scale * dropout(x) A^T. Backward reads x for A's gradient and h for B's; what was
/// dropped is drawn again. The gradient of y is the output's, so the linear below gets it without a copy.
Rule rule_of_lora(const OpContext& context, const Needs& needs) {
  Rule rule;
  rule.in_place_input = 1;
  rule.gradients = {{GradientSource::From::fresh, 0}, {GradientSource::From::pass_through, 0}};
  if (wants_parameter(needs, 0)) rule.saved.push_back(input(0));
  if (wants_parameter(needs, 1)) rule.saved.push_back(output(1));
  const bool has_scratch = !is_cuda(context) && context.compute() != Dtype::f32;
  if (has_scratch) rule.forward.push_back(temporary("product", lora_forward_scratch(context), Dtype::f32));
  add_dropout(context, rule.forward);
  add_norms(context, rule.forward);
  if (!wants_hidden_gradient(needs) && !wants_parameter(needs, 1)) return rule;
  if (has_scratch) rule.backward.push_back(temporary("product", lora_backward_scratch(context), Dtype::f32));
  if (!wants_hidden_gradient(needs)) return rule;
  rule.backward.push_back(temporary("hidden gradient", context.output_elements(1), context.compute()));
  add_dropout(context, rule.backward);
  return rule;
}

OpWork work_of_lora(const OpContext& context, const Needs& needs) {
  const LoraSizes s = lora_sizes(context);
  OpWork work;
  const auto add = [&](std::vector<Work>& list, const WorkShape& shape) {
    list.push_back(adapter_product_work(context, shape));
  };
  if (drops(context)) work.forward.push_back(dropout_work(context));
  add(work.forward, {s.tokens, s.rank, s.inputs});
  add(work.forward, {s.tokens, s.outputs, s.rank});
  add_norms_work(context, work.forward);
  if (wants_hidden_gradient(needs)) add(work.backward, {s.tokens, s.rank, s.outputs});
  if (wants_parameter(needs, 1)) add(work.backward, {s.outputs, s.rank, s.tokens});
  if (wants_parameter(needs, 0)) {
    if (drops(context)) work.backward.push_back(dropout_work(context));
    add(work.backward, {s.rank, s.inputs, s.tokens});
  }
  if (wants_input(needs, 0)) {
    add(work.backward, {s.tokens, s.inputs, s.rank});
    if (drops(context)) work.backward.push_back(dropout_work(context));
  }
  return work;
}

}  // namespace

double flops_of_adapter(const Graph& graph, const Op& op, const BatchShape& shape) {
  const auto tokens = static_cast<double>(shape.batch) * static_cast<double>(shape.sequence);
  double elements = 0;
  for (const ParameterUse& use : std::span(op.parameters).first(2)) {
    const std::vector<std::int64_t>& sizes = graph.parameters[static_cast<std::size_t>(use.parameter)].shape;
    elements += static_cast<double>(use.count < 0 ? sizes.at(0) : use.count) * static_cast<double>(sizes.at(1));
  }
  return 2 * tokens * elements;
}

const OpRow op_rows::lora{.rule = rule_of_lora,
                          .work = work_of_lora,
                          .model_flops = flops_of_adapter,
                          .transposable = 2,
                          .has_own_kernel = true};

}  // namespace vramfit
