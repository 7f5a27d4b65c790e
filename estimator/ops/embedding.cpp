#include <algorithm>

#include "estimator/ops/rules.h"

namespace vramfit {

namespace {
// Rows of the output's gradient that CUDA casts at a time: index_add_ wants one dtype.
constexpr std::int64_t kCastRows = 1024;
}  // namespace

/// Rows of the table by token id. Backward reads the ids, which the micro-batch holds anyway. The table's gradient has
/// the reduce dtype and is added to row by row.
///
/// CPU: own loops. CUDA: index_select_out, and index_add_ over blocks of rows cast to the reduce dtype where it
/// differs.
Rule rule_of_embedding(const OpContext& context, const Needs& /*needs*/) {
  Rule rule;
  rule.saved = {input(0)};
  const bool casts = context.precision.reduce != context.compute();
  if (is_cuda(context) && casts) {
    const std::int64_t width = context.output_elements(0) / context.tokens();
    const std::int64_t rows = std::min(context.tokens(), kCastRows);
    rule.backward = {temporary("rows", checked_mul(rows, width), context.precision.reduce)};
  }
  return rule;
}

}  // namespace vramfit
