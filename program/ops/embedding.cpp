#include <algorithm>

#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// CUDA, --deterministic: which rows of a block belong to the same token, how many of them came before, and their sums.
void add_ordered_steps(const OpContext& context, std::int64_t rows, std::int64_t width, Rule& rule) {
  const Dtype dtype = context.precision.reduce;
  rule.backward.push_back(temporary("same_token", checked_mul(rows, rows), dtype));
  rule.backward.push_back(temporary("ones", rows, dtype));
  rule.backward.push_back(temporary("earlier", rows, dtype));
  rule.backward.push_back(temporary("sums", checked_mul(rows, width), dtype));
}

/// Rows of the table by token id. Backward reads the ids, which the micro-batch holds anyway. The table's gradient has
/// the reduce dtype and is added to row by row.
///
/// CPU: own loops. CUDA: index_select_out, and index_add_ over blocks of rows cast to the reduce dtype where it
/// differs; index_add_ adds in no fixed order, so --deterministic first sums the rows of each token within a block by
/// a product, after which at most one row of a block that isn't zero goes to any row of the table.
Rule rule_of_embedding(const OpContext& context, const Needs& /*needs*/) {
  Rule rule;
  rule.saved = {input(0)};
  if (!is_cuda(context)) return rule;
  const std::int64_t width = context.output_elements(0) / context.tokens();
  const std::int64_t rows = std::min(context.tokens(), kEmbeddingBlockRows);
  if (context.precision.reduce != context.compute()) {
    rule.backward = {temporary("rows", checked_mul(rows, width), context.precision.reduce)};
  }
  if (context.deterministic) add_ordered_steps(context, rows, width, rule);
  return rule;
}

}  // namespace

const OpRow op_rows::embedding{.rule = rule_of_embedding, .sums_many = true, .reads_weights_backward = false};

}  // namespace vramfit
