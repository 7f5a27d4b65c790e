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

/// Of the op that is adapter and magnitude in one, because what is dropped is dropped for the matrix, too
/// (program/ops/dropped_dora.cpp): floats of the scratch that its products on CPU share.
std::int64_t dropped_dora_forward_scratch(const OpContext& context);
std::int64_t dropped_dora_backward_scratch(const OpContext& context, const Needs& needs);

/// Whether backward needs the gradient of the hidden values: for A's, or the input's.
bool wants_hidden_gradient(const Needs& needs);

/// Elements of the matrix, in fp32, whose squares CUDA sums at a time.
inline constexpr std::int64_t kSquaredPart = std::int64_t{1} << 22;

/// Elements whose dropout CUDA draws at a time.
inline constexpr std::int64_t kDropoutPart = std::int64_t{1} << 22;
std::int64_t dropout_part(const OpContext& context);

/// Temporaries of dropout and of norms, none where the op has neither, and their work.
void add_dropout(const OpContext& context, std::vector<Step>& steps);
void add_norms(const OpContext& context, std::vector<Step>& steps);
Work dropout_work(const OpContext& context);
void add_norms_work(const OpContext& context, std::vector<Work>& work);
Work adapter_product_work(const OpContext& context, const WorkShape& shape);
/// A's product and B's, of which a linear may use a part.
double flops_of_adapter(const Graph& graph, const Op& op, const BatchShape& shape);

}  // namespace vramfit
