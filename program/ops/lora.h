// Sizes of an adapter's op, which its rule and its kernels share.
#pragma once

#include <cstdint>

#include "program/ops/rule.h"

namespace vramfit {

struct LoraSizes {
  std::int64_t tokens = 0, inputs = 0, outputs = 0, rank = 0;
};
LoraSizes lora_sizes(const OpContext& context);

/// Floats of the scratch that its products on CPU share; 0 where all is fp32.
std::int64_t lora_forward_scratch(const OpContext& context);
std::int64_t lora_backward_scratch(const OpContext& context);

/// Whether its third output is the norms of the rows of the matrix and its adapter, which a magnitude is divided by
/// (DoRA), and the rows of which CUDA works on that many at a time, in fp32.
bool has_norms(const OpContext& context);
std::int64_t norm_rows(const OpContext& context);

/// Whether backward needs the gradient of the hidden values: for A's, or the input's.
bool wants_hidden_gradient(const Needs& needs);

/// Elements of the matrix, in fp32, whose squares CUDA sums at a time.
inline constexpr std::int64_t kSquaredPart = std::int64_t{1} << 22;

/// Elements whose dropout CUDA draws at a time.
inline constexpr std::int64_t kDropoutPart = std::int64_t{1} << 22;
std::int64_t dropout_part(const OpContext& context);

}  // namespace vramfit
