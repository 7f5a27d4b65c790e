#include <algorithm>

#include "program/model_flops.h"
#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// What every chunk of rows needs: its logits, over which their gradient is written, and its lse.
std::vector<Step> chunk_steps(const OpContext& context, std::int64_t rows, std::int64_t vocabulary) {
  return {temporary("logits", checked_mul(rows, vocabulary), context.compute()), temporary("lse", rows, Dtype::f32)};
}

void append(std::vector<Step>& steps, const std::vector<Step>& more) {
  steps.insert(steps.end(), more.begin(), more.end());
}

const Parameter& weight_of(const OpContext& context) {
  return context.graph.parameters[static_cast<std::size_t>(context.op.parameters[0].parameter)];
}

}  // namespace

std::int64_t chunked_product_elements(const OpContext& context, std::int64_t rows, bool wants_x, bool wants_weight) {
  const std::int64_t vocabulary = weight_of(context).shape[0], width = weight_of(context).shape[1];
  const bool is_16_bit = context.compute() != Dtype::f32;
  std::int64_t elements = is_16_bit ? product_elements({rows, vocabulary, width}) : 0;
  if (is_16_bit && wants_x) elements = std::max(elements, product_elements({rows, width, vocabulary}));
  if (wants_weight && (is_16_bit || context.precision.reduce != Dtype::f32)) {
    elements = std::max(elements, product_elements({vocabulary, width, rows, true}));
  }
  return elements;
}

namespace {

/// The head and its cross entropy over chunks of rows, so that [N, V] never exists. If a gradient is needed, the loss
/// is computed together with it in backward: forward allocates only the scalar, and logits are computed once. The
/// gradient of x needs no sum (each chunk owns its rows); the weight's is a sum over chunks, kept in the reduce dtype.
/// With gradients in forward that backward is a part of the forward pass: x is dropped there, and its gradient waits
/// for the backward pass instead, as in Liger's fused linear cross entropy (Hsu et al. 2024, arXiv 2410.10989). On CUDA
/// a product of any compute dtype is added to fp32 in place; for other types it goes through one [V, H] temporary. On
/// CPU products accumulate in fp32; those of 16-bit factors or results share a scratch.
Rule rule_of_linear_cross_entropy(const OpContext& context, const Needs& needs) {
  Rule rule;
  rule.saved = {input(0), input(1)};
  rule.gradients = {{GradientSource::From::fresh, 0}};
  rule.backward_in_forward = context.op.attributes.gradients_in_forward && needs.any();
  const Parameter& weight = weight_of(context);
  const std::int64_t vocabulary = weight.shape[0];
  const std::int64_t rows = ceil_div(context.tokens(), context.op.attributes.chunks);
  std::vector<Step>& steps = needs.any() ? rule.backward : rule.forward;
  steps = chunk_steps(context, rows, vocabulary);
  if (!is_cuda(context)) {
    const std::int64_t product =
        chunked_product_elements(context, rows, wants_input(needs, 0), wants_parameter(needs, 0));
    if (product > 0) steps.push_back(temporary("product", product, Dtype::f32));
    return rule;
  }
  append(steps, cuda_cross_entropy_forward(context, rows, vocabulary));
  if (!needs.any()) return rule;
  append(steps, cuda_label_blocks(context, rows));
  const Dtype sums = context.precision.reduce;
  const bool casts = sums != context.compute() && sums != Dtype::f32;
  if (wants_parameter(needs, 0) && casts) {
    steps.push_back(temporary("weight_gradient", element_count(weight), context.compute()));
  }
  if (wants_parameter(needs, 1)) {
    append(steps,
           {temporary("ones", rows, context.compute()), temporary("bias_gradient", vocabulary, context.compute())});
  }
  return rule;
}

/// Each chunk reads the weight for each product that needs it, and adds its product to the weight's whole gradient. On
/// CPU it passes three times over its logits.
OpWork work_of_linear_cross_entropy(const OpContext& context, const Needs& needs) {
  const Parameter& parameter = weight_of(context);
  const auto width = static_cast<double>(dtype_bytes(context.compute()).n);
  const auto sum_width = static_cast<double>(dtype_bytes(context.precision.reduce).n);
  const auto weight = static_cast<double>(element_count(parameter));
  const std::int64_t words = parameter.shape[0], hidden = parameter.shape[1];
  const std::int64_t chunks = ceil_div(context.tokens(), ceil_div(context.tokens(), context.op.attributes.chunks));
  const auto tokens = static_cast<double>(context.tokens());
  const double weights = static_cast<double>(chunks) * weight;  // elements read over all chunks
  const double activations = tokens * static_cast<double>(words + hidden) * width;
  const std::int64_t rows_of_chunk = ceil_div(context.tokens(), chunks);
  const auto product = [&](double weight_bytes, WorkShape shape) {
    return Work{.unit = Work::Unit::product,
                .dtype = context.compute(),
                .launches = chunks,
                .flops = 2 * tokens * weight,
                .bytes = weight_bytes + activations,
                .shape = shape};
  };
  OpWork work;
  std::vector<Work>& list = needs.any() ? work.backward : work.forward;
  list = {product(weights * width, {rows_of_chunk, words, hidden})};
  if (is_cuda(context)) {
    for (auto* part : {cuda_cross_entropy_forward_work, cuda_cross_entropy_backward_work}) {
      Work rows = part(context, rows_of_chunk, words);
      rows.launches = checked_mul(rows.launches, chunks);
      rows.bytes *= static_cast<double>(chunks);
      list.push_back(rows);
      if (!needs.any()) break;
    }
  } else {
    list.push_back({.launches = 3 * chunks, .bytes = 3 * tokens * static_cast<double>(words) * width});
  }
  if (wants_input(needs, 0)) list.push_back(product(weights * width, {rows_of_chunk, hidden, words}));
  if (!wants_parameter(needs, 0)) return work;
  list.push_back(product(2 * weights * sum_width, {words, hidden, rows_of_chunk}));
  list.push_back({.bytes = weight * sum_width});  // the gradient starts at zero
  return work;
}

}  // namespace

const OpRow op_rows::linear_cross_entropy{.rule = rule_of_linear_cross_entropy,
                                          .work = work_of_linear_cross_entropy,
                                          .model_flops = flops_of_product,
                                          .is_loss = true,
                                          .sums_many = true,
                                          .adds_bias_in_product = true,
                                          .has_own_kernel = true};

}  // namespace vramfit
