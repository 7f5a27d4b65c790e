// Linears whose matrix products use FP8 operands (--precision fp8): which ones, and what they allocate
// (docs/precision.md).
#pragma once

#include <string>

#include "job/job.h"
#include "program/ops/rule.h"

namespace vramfit {

/// The largest finite numbers of the two formats (OCP 8-bit floating point specification, table 1).
inline constexpr double kLargestE4m3 = 448, kLargestE5m2 = 57344;
/// A scale is the format's largest number divided by the operand's, which is taken to be at least this (torchao's EPS).
inline constexpr double kLeastAmax = 1e-12;

/// A product that is added to a gradient is computed this many rows at a time: `_scaled_mm` can't add to its output.
inline constexpr std::int64_t kFp8ProductRows = 1024;

/// Whether this op uses FP8: a linear inside a layer whose weight is stored as [O, I] (torchao converts `nn.Linear` but
/// not GPT-2's `Conv1D`), with I, O and the rows of a micro-batch all multiples of 16. `_scaled_mm` requires that of
/// the dimension that a product sums over and of its columns; each of I, O and rows is one or the other in some
/// product.
bool multiplies_in_fp8(const Op& op, const Segment& segment, const Precision& precision, const BatchShape& shape);
inline bool multiplies_in_fp8(const OpContext& context) {
  return multiplies_in_fp8(context.op, context.segment, context.precision, context.shape);
}

/// The rule of a linear for which the above holds.
Rule rule_of_fp8_linear(const OpContext& context, const Needs& needs);

/// A factor of a product in FP8, which is cast before.
struct Fp8Factor {
  double elements = 0;
  bool is_transposed = false;  // while it is cast
  bool has_scale = false;      // from its cast for another product
};
/// What casting it does, on the card or the CPU.
std::vector<Work> work_of_fp8_cast(const OpContext& context, const Fp8Factor& factor);

/// Whether CUDA computes any product with cublasLt, which has its own workspace: those with a bias or FP8 operands.
bool uses_cublaslt(const Graph& graph, const Precision& precision, const BatchShape& shape);

/// "FP8 products in 21 of 21 linears of the layers", and why not in all; "" if the precision isn't fp8.
std::string fp8_note(const Graph& graph, const Job& job);

}  // namespace vramfit
