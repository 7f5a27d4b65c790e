// Sums of an embedding's gradient whose order is fixed.
#pragma once

#include <ATen/core/Tensor.h>

namespace vramfit::kernels {

/// Buffers that blocks of at most kEmbeddingBlockRows rows share; undefined where they aren't needed.
struct EmbeddingBlocks {
  at::Tensor rows;        // [rows, width], cast to the table's dtype
  at::Tensor same_token;  // the rest: --deterministic; [rows * rows]
  at::Tensor ones;        // [1, rows], filled
  at::Tensor earlier;     // [1, rows]
  at::Tensor sums;        // [rows, width]
};

/// Of a block of rows [count, width]: for the first row of each token the sum over all rows of that token, zero for the
/// others. Whatever order index_add_ takes them in, it adds at most one number that isn't zero to any place. A view of
/// blocks.sums. A row that isn't finite makes all rows NaN. Any device.
at::Tensor sums_by_token(const at::Tensor& ids, const at::Tensor& rows, EmbeddingBlocks& blocks);

}  // namespace vramfit::kernels
