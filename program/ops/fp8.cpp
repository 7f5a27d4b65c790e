#include "program/ops/fp8.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "program/ops/rules.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMultiple = 16;

std::int64_t width_of(const Segment& segment, int value) {
  return segment.values[static_cast<std::size_t>(value)].shape.back().factor;
}

/// Rows, inputs and outputs of a linear.
struct Sizes {
  std::int64_t tokens, inputs, outputs;
};

Sizes sizes_of(const OpContext& context) {
  const std::int64_t tokens = context.tokens();
  return {tokens, context.input_elements(0) / tokens, context.output_elements(0) / tokens};
}

constexpr std::int64_t kMostNormParts = 16;  // 2^32 elements

/// The scale of an operand and its inverse, from its largest number: a reduction part by part
/// (executor/ops/fp8_cuda.cpp).
void add_scale(std::vector<Step>& steps, const std::string& name, std::int64_t elements, const Device& device) {
  steps.push_back(temporary(name + "_scale", 1, Dtype::f32));
  steps.push_back(temporary(name + "_inverse", 1, Dtype::f32));
  // Each part reuses what the one before it freed, so of many, one full part and the rest have the same effect.
  const std::int64_t whole = elements / kNormPart;
  for (std::int64_t first = whole > kMostNormParts ? (whole - 1) * kNormPart : 0; first < elements;
       first += kNormPart) {
    const SumScratch scratch = sum_scratch(std::min(kNormPart, elements - first), device);
    steps.push_back(temporary("partials", scratch.partials.n, Dtype::u8));
    steps.push_back(temporary("counter", scratch.counter.n, Dtype::u8));
    steps.push_back(release("counter"));
    steps.push_back(release("partials"));
  }
}

/// One product of a backward: both operands in FP8, and the block of rows through which it is added to a gradient.
void add_product(std::vector<Step>& steps, const std::array<Step, 2>& factors, const Step& block) {
  steps.insert(steps.end(), {factors[0], factors[1], block});
  for (const std::string& name : {block.name, factors[1].name, factors[0].name}) steps.push_back(release(name));
}

Step product_block(std::int64_t rows, std::int64_t columns, Dtype dtype) {
  return temporary("product", checked_mul(std::min(rows, kFp8ProductRows), columns), dtype);
}

void add_cuda_steps(const OpContext& context, const Needs& needs, Rule& rule) {
  const auto [tokens, inputs, outputs] = sizes_of(context);
  const std::int64_t x = checked_mul(tokens, inputs), y = checked_mul(tokens, outputs);
  const std::int64_t weight = checked_mul(inputs, outputs);
  const auto scale = [&](std::vector<Step>& steps, const char* name, std::int64_t elements) {
    add_scale(steps, name, elements, context.device);
  };
  scale(rule.forward, "x", x);
  scale(rule.forward, "weight", weight);
  rule.forward.push_back(temporary("x_fp8", x, Dtype::f8_e4m3));
  rule.forward.push_back(temporary("weight_fp8", weight, Dtype::f8_e4m3));
  rule.forward.push_back(release("weight_fp8"));
  rule.forward.push_back(release("x_fp8"));
  if (wants_parameter(needs, 1)) rule.backward.push_back(temporary("ones", tokens, context.compute()));
  if (!wants_input(needs, 0) && !wants_parameter(needs, 0)) return;
  scale(rule.backward, "dy", y);
  if (wants_input(needs, 0)) {
    scale(rule.backward, "weight", weight);
    add_product(rule.backward,
                {temporary("dy_fp8", y, Dtype::f8_e5m2), temporary("weight_fp8", weight, Dtype::f8_e4m3)},
                product_block(tokens, inputs, context.compute()));
  }
  if (wants_parameter(needs, 0)) {
    scale(rule.backward, "x", x);
    add_product(rule.backward, {temporary("dy_fp8", y, Dtype::f8_e5m2), temporary("x_fp8", x, Dtype::f8_e4m3)},
                product_block(outputs, inputs, context.compute()));
  }
}

/// CPU: numbers rounded to FP8 are kept in the compute dtype, which represents all of them, and multiplied as usual.
void add_cpu_steps(const OpContext& context, const Needs& needs, Rule& rule) {
  const auto [tokens, inputs, outputs] = sizes_of(context);
  const std::int64_t x = checked_mul(tokens, inputs), weight = checked_mul(inputs, outputs);
  const bool wants_x = wants_input(needs, 0), wants_weight = wants_parameter(needs, 0);
  rule.forward = {temporary("x_fp8", x, context.compute()), temporary("weight_fp8", weight, context.compute()),
                  temporary("product", linear_forward_scratch(context), Dtype::f32)};
  if (!wants_x && !wants_weight) return;
  const std::int64_t product = linear_backward_scratch(context, wants_x, wants_weight);
  rule.backward = {temporary("dy_fp8", checked_mul(tokens, outputs), context.compute()),
                   temporary("factor_fp8", std::max(wants_x ? weight : 0, wants_weight ? x : 0), context.compute()),
                   temporary("product", product, Dtype::f32)};
}

template <typename F>
void for_each_linear(const Graph& graph, const F& f) {
  for (const Segment& segment : graph.segments) {
    if (segment.role != SegmentRole::block) continue;
    for (const Op& op : segment.ops) {
      if (op.kind == OpKind::linear) f(op, segment);
    }
  }
}

}  // namespace

bool multiplies_in_fp8(const Op& op, const Segment& segment, const Precision& precision, const BatchShape& shape) {
  if (!wants_fp8(precision) || op.kind != OpKind::linear || segment.role != SegmentRole::block) return false;
  if (op.attributes.transposed_weight) return false;
  const auto fits = [](std::int64_t n) { return n % kMultiple == 0; };
  return fits(checked_mul(shape.batch, shape.sequence)) && fits(width_of(segment, op.inputs[0])) &&
         fits(width_of(segment, op.outputs[0]));
}

/// y = (X W^T) / (sx sw), dx = (dY W) / (sdy sw), dW = (dY^T X) / (sdy sx), capitals in FP8: X and W e4m3, dY e5m2. x
/// is saved as it is, because it mostly exists anyway (q, k and v share it, as gate and up do). It and the weight are
/// cast again in backward, into the layouts that the two products there require: both operands contiguous along the
/// dimension that is summed over.
Rule rule_of_fp8_linear(const OpContext& context, const Needs& needs) {
  Rule rule;
  if (wants_parameter(needs, 0)) rule.saved = {input(0)};
  rule.gradients = {{GradientSource::From::fresh, 0}};
  is_cuda(context) ? add_cuda_steps(context, needs, rule) : add_cpu_steps(context, needs, rule);
  return rule;
}

/// CUDA: a reduction finds the largest number, four calls on one number make the scale and its inverse, and one kernel
/// reads, scales and rounds. Its output's order is that of its threads (TensorIterator), so that a transposed factor's
/// numbers are read one by one, each from another sector of 32 bytes.
std::vector<Work> work_of_fp8_cast(const OpContext& context, const Fp8Factor& factor) {
  constexpr double kSector = 32;
  constexpr std::int64_t kScaleLaunches = 5;
  const auto width = static_cast<double>(dtype_bytes(context.compute()).n);
  if (!is_cuda(context)) {  // a pass for the largest number, and one that rounds
    return {{.unit = Work::Unit::cast, .launches = kScaleLaunches + 1, .bytes = factor.elements * (2 * width + 1)}};
  }
  std::vector<Work> work;
  if (!factor.has_scale) work.push_back({.launches = kScaleLaunches, .bytes = factor.elements * width});
  const double read = factor.is_transposed ? kSector : width;
  work.push_back({.unit = Work::Unit::eager_cast, .bytes = factor.elements * (read + 1)});
  return work;
}

bool uses_cublaslt(const Graph& graph, const Precision& precision, const BatchShape& shape) {
  if (adds_bias(graph)) return true;
  bool any = false;
  for_each_linear(graph, [&](const Op& op, const Segment& segment) {
    any = any || multiplies_in_fp8(op, segment, precision, shape);
  });
  return any;
}

std::string fp8_note(const Graph& graph, const Job& job) {
  if (!wants_fp8(job.precision)) return "";
  const BatchShape shape{job.micro_batch, job.sequence};
  std::int64_t all = 0, in_fp8 = 0;
  for_each_linear(graph, [&](const Op& op, const Segment& segment) {
    ++all;
    if (multiplies_in_fp8(op, segment, job.precision, shape)) ++in_fp8;
  });
  std::string text = fmt::format("FP8 products in {} of {} linears of the layers", in_fp8, all);
  if (in_fp8 == all) return text;
  const std::int64_t tokens = checked_mul(shape.batch, shape.sequence);
  if (tokens % kMultiple != 0) {
    return text + fmt::format(": {} rows of a micro-batch are no multiple of {}", tokens, kMultiple);
  }
  return text +
         fmt::format(": the others' sizes are no multiples of {}, or their weights are stored transposed", kMultiple);
}

}  // namespace vramfit
