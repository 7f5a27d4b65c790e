#include <algorithm>

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

}  // namespace vramfit
