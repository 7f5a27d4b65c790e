// Sizes and types of ATen calls.
#pragma once

#include <cstdint>

#include "model_specs/dtype.h"

namespace vramfit::eager {

/// What scaled_dot_product_attention computes with.
enum class AttentionKernel { flash, efficient, cudnn, math };

/// Attention's sizes; `kv_heads` is less than `heads` where the call itself shares keys and values (enable_gqa).
struct AttentionShape {
  std::int64_t batch = 0, sequence = 0, heads = 0, head_dim = 0, kv_heads = 0;
  bool may_be_cudnn = false;    // where the card and the sizes are for it
  bool asks_for_cudnn = false;  // before any other kernel
  bool heads_first = false;     // queries and keys lie so in memory; otherwise tokens do
  bool drops = false;           // probabilities, within the kernel
  bool causal = true;           // otherwise queries see all keys
  bool has_backward = true;     // otherwise some kernels make no sums of rows (sdp_utils.cpp: should_compute_logsumexp)

  /// Several heads of queries have the same keys and values.
  bool shares_heads() const { return kv_heads != 0 && kv_heads != heads; }
};

/// Of a product for each group of rows: all groups have `rows` together; in the product that makes the gradients of all
/// groups' matrices, `inner` is what they have together.
struct GroupedShape {
  std::int64_t groups = 0, rows = 0, columns = 0, inner = 0;
  bool by_inputs = false;  // the matrices are (inner, columns), as they are multiplied; otherwise (columns, inner)
};

/// Of matrices in 4 bits: the type of products, and the one that they were quantized from, to which backward
/// dequantizes them.
struct QuantizedTypes {
  Dtype compute, original;
};

/// A parameter of `rows` rows of `dtype`, in which each id finds its own.
struct Table {
  int parameter = -1;
  std::int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::f32;
};

/// Parameters of a layer norm, of `width` numbers of `dtype`.
struct NormWeights {
  int weight = -1, bias = -1;
  Dtype dtype = Dtype::f32;
  std::int64_t width = 0;
};

/// A parameter of `outputs` rows.
struct OutputWeights {
  int parameter = -1;
  std::int64_t width = 0, outputs = 0;
};

/// Of two types of 16 bits that differ, fp32 (torch.promote_types).
inline Dtype wider(Dtype a, Dtype b) { return a == b ? a : Dtype::f32; }

}  // namespace vramfit::eager
