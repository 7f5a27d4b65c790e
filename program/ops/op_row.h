// The table of ops for modeling `vramfit`: the row of each name in model_specs/ops.def is in program/ops/NAME.cpp.
#pragma once

#include <optional>

#include "program/ops/rule.h"

namespace vramfit {

/// Bound by memory: inputs, outputs and parameters once in forward, twice in backward if anything needs a gradient.
OpWork work_of_passes(const OpContext& context, const Needs& needs);

/// What an op allocates and computes, and what is particular about it.
struct OpRow {
  Rule (*rule)(const OpContext& context, const Needs& needs);
  OpWork (*work)(const OpContext& context, const Needs& needs) = work_of_passes;
  /// FLOPs of the products of its forward, which are counted as the model's (program/model_flops.h); null: none.
  double (*model_flops)(const Graph& graph, const Op& op, const BatchShape& shape) = nullptr;
  bool is_loss = false;                // its backward begins without a gradient
  bool sums_many = false;              // so many terms in a parameter's gradient that it has the reduce dtype
  bool reads_weights_backward = true;  // false: a table, of which backward needs the gradient alone
  bool quantizes_weight = false;       // its first parameter is a matrix that may be stored in few bits
  int transposable = 0;                // the parameter that Attributes::transposed_weight is about
  bool adds_bias_in_product = false;   // CUDA uses cublasLt for that, if it has a second parameter
  bool has_own_kernel = false;         // with --kernels vramfit (executor/kernels)
  /// An op of this kind that has just made input 0 is done in the same pass as forward, by own kernels; `joint` is the
  /// work of both. It allocates nothing.
  std::optional<OpKind> joins = std::nullopt;
  OpWork (*joint)(const OpContext& context, const Needs& needs) = nullptr;
};

const OpRow& op_row(OpKind kind);

namespace op_rows {
#define OP(name) extern const OpRow name;
#include "model_specs/ops.def"
#undef OP
}  // namespace op_rows

}  // namespace vramfit
