#include <algorithm>

#include "program/model_flops.h"
#include "program/ops/attention.h"
#include "program/ops/rules.h"

namespace vramfit {

// One head of every group and the keys that its block of queries attends to: few if there is a window.
MathBlock math_block(const OpContext& context) {
  const Attributes& a = context.op.attributes;
  const std::int64_t sequence = context.shape.sequence, rows = std::min(sequence, kMathAttentionRows);
  const bool windowed = a.causal && a.window > 0 && a.window < sequence;
  return {a.kv_heads, rows, windowed ? std::min(sequence, a.window + rows - 1) : sequence};
}

// Scores, softmax and their gradients are fp32. Products have operands in the compute dtype and accumulate in fp32, so
// in 16-bit types probabilities are rounded into a separate buffer and results pass through fp32 rows. Sums over
// queries (dk, dv) are kept in fp32 for one sequence at a time.
void add_math_steps(const OpContext& context, Rule& rule) {
  const MathBlock block = math_block(context);
  const std::int64_t head_dim = context.op.attributes.head_dim;
  const std::int64_t rows = checked_mul(block.heads, block.rows);
  const std::int64_t keys = checked_mul(checked_mul(context.shape.sequence, block.heads), head_dim);
  const bool is_16_bit = context.compute() != Dtype::f32;
  const auto add = [](std::vector<Step>& steps, const char* name, std::int64_t elements, Dtype dtype = Dtype::f32) {
    steps.push_back(temporary(name, elements, dtype));
  };
  add(rule.forward, "scores", block.elements());
  add(rule.forward, "log_probabilities", block.elements());
  add(rule.backward, "scores", block.elements());
  add(rule.backward, "dscores", block.elements());
  for (std::vector<Step>* steps : {&rule.forward, &rule.backward}) {
    add(*steps, "factors", 3);
    if (context.op.attributes.causal) add(*steps, "mask", block.rows * block.rows);
    if (is_16_bit) add(*steps, "rounded", block.elements(), context.compute());
    if (is_16_bit || steps == &rule.backward) add(*steps, "rows", checked_mul(rows, head_dim));
  }
  add(rule.backward, "drows", checked_mul(rows, head_dim));
  add(rule.backward, "delta", rows);
  if (!is_16_bit) return;
  add(rule.backward, "dk32", keys);
  add(rule.backward, "dv32", keys);
}

// Besides the products, each score is written and read in fp32 by one call after the other, and every block of queries
// is as many launches (executor/ops/attention_math.cpp, forward; a softcap is two calls more). Backward is twice
// forward.
OpWork work_of_math_attention(const OpContext& context, const Needs& needs) {
  const Attributes& a = context.op.attributes;
  const double passes = a.softcap == 0 ? 9 : 13;
  const std::int64_t calls = a.softcap == 0 ? 9 : 11;
  const std::int64_t blocks = checked_mul(checked_mul(context.shape.batch, a.heads / a.kv_heads),
                                          ceil_div(context.shape.sequence, kMathAttentionRows));
  const auto sequence = static_cast<double>(context.shape.sequence);
  const double scores =
      static_cast<double>(context.tokens()) * static_cast<double>(a.heads) * attended_rows(a, sequence);
  const Work product{.unit = Work::Unit::product,
                     .dtype = context.compute(),
                     .flops = forward_flops(context.graph, context.op, context.shape),
                     .bytes = bytes_of(context)};
  const Work elementwise{.launches = checked_mul(calls, blocks), .bytes = 4 * passes * scores};
  OpWork work{.forward = {product, elementwise}, .backward = {}};
  if (needs.any()) work.backward = {product, elementwise, product, elementwise};
  return work;
}

}  // namespace vramfit
