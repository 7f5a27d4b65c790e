// Which implementation an attention op uses, and the sizes that its rule and its kernels share.
#pragma once

#include "program/ops/rule.h"

namespace vramfit {

enum class AttentionPath {
  blocks,     // CPU: own loops, a head and a block of queries at a time
  flash,      // at::_flash_attention_forward
  efficient,  // at::_efficient_attention_forward
  math        // composed of batched products and elementwise calls; any device
};

/// The path of an attention op under the job's `--attention`; throws NotModelled, naming the feature, where it has
/// none.
AttentionPath attention_path(const OpContext& context);

/// How many parts flash attention splits the keys into: the fewest whose last wave of thread blocks is filled to 85 %
/// of the best, or one if the SMs are nearly filled anyway (FlashAttention-2, num_splits_heuristic; two thread
/// blocks per SM, 64 queries each). `heads` counts the whole batch.
std::int64_t flash_splits(std::int64_t heads, std::int64_t sequence, std::int64_t head_dim, const Device& device);

/// Whether a thread block may have 160 KiB of shared memory and more (CUDA programming guide, table of limits).
bool has_large_blocks(const Device& device);

/// Bytes of the buffer in which at::_efficient_attention_backward accumulates the gradient of the queries; `heads`
/// counts the whole batch.
std::int64_t efficient_dq_bytes(std::int64_t heads, std::int64_t sequence, std::int64_t head_dim, const Device& device);

/// Queries that the math path scores at a time.
inline constexpr std::int64_t kMathAttentionRows = 256;

/// A block of scores of the math path: [heads, rows, keys] at most.
struct MathBlock {
  std::int64_t heads = 0, rows = 0, keys = 0;
  std::int64_t elements() const { return checked_mul(checked_mul(heads, rows), keys); }
};
MathBlock math_block(const OpContext& context);

/// The temporaries of the math path, in order.
void add_math_steps(const OpContext& context, Rule& rule);

/// The work of the math path.
OpWork work_of_math_attention(const OpContext& context, const Needs& needs);

}  // namespace vramfit
