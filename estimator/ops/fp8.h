// Linears whose products take FP8 factors (--precision fp8): which they are, and what they allocate. docs/precision.md.
#pragma once

#include <string>

#include "estimator/job.h"
#include "estimator/rule.h"

namespace vramfit {

/// The largest finite numbers of the two formats (OCP 8-bit floating point specification, table 1).
inline constexpr double kLargestE4m3 = 448, kLargestE5m2 = 57344;
/// A scale is the format's largest number divided by the factor's; the latter is taken as at least this (torchao's
/// EPS).
inline constexpr double kLeastAmax = 1e-12;

/// Rows of a product that is added to a gradient, made at a time: `_scaled_mm` writes its result and adds nothing.
inline constexpr std::int64_t kFp8ProductRows = 1024;

/// Whether the job computes its linears in FP8 where it can.
inline bool wants_fp8(const Precision& precision) { return precision.name == "fp8"; }

/// Whether this op does: a linear inside a layer whose weight is stored as [O, I], as torchao converts `nn.Linear` and
/// not GPT-2's `Conv1D`; I, O and the rows of a micro-batch are multiples of 16, which `_scaled_mm` wants of what a
/// product sums over and of its columns, and each of the three is one or the other in one of the three products.
bool multiplies_in_fp8(const Op& op, const Segment& segment, const Precision& precision, const BatchShape& shape);
inline bool multiplies_in_fp8(const OpContext& context) {
  return multiplies_in_fp8(context.op, context.segment, context.precision, context.shape);
}

/// The rule of a linear for which the above holds.
Rule rule_of_fp8_linear(const OpContext& context, const Needs& needs);

/// Bytes that casting the factors of one forward reads and writes beyond the product, and the kernels it launches.
struct Fp8Casts {
  double bytes = 0, launches = 0;
};
Fp8Casts fp8_casts(const OpContext& context);

/// Whether CUDA makes a product through cublasLt, which has a workspace of its own: those with a bias or FP8 factors.
bool uses_cublaslt(const Graph& graph, const Precision& precision, const BatchShape& shape);

/// "FP8 products in 21 of 21 linears of the layers", and why not in all; "" where the precision isn't fp8.
std::string fp8_note(const Graph& graph, const Job& job);

}  // namespace vramfit
