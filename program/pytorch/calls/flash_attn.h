// The flash-attn package (2.8.3) as transformers 5.23 calls it (modeling_flash_attention_utils.py).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

/// Documents that lie one after the other in a row; `count` is 0 where each row is one.
struct PackedDocuments {
  std::int64_t count = 0;
  Tensor ends_of_queries, ends_of_keys;  // cu_seqlens; empty: each layer finds them by positions
};

class FlashAttn {
 public:
  explicit FlashAttn(Torch& torch) : torch_(torch) {}

  struct Inputs {
    Tensor q, k, v;
    bool values_lie_apart = false;  // as a part of what has queries and keys, too
  };
  /// Queries in fp32 are converted to what autocast computes in, and keys and values with them. `positions`: of the
  /// tokens, by which a single row is searched for documents. The result has tokens first. Throws NotModelled for heads
  /// that the package pads.
  Tensor attention(const Inputs& inputs, const AttentionShape& shape, const Tensor& positions,
                   const PackedDocuments& documents);

 private:
  /// As kernels take them.
  struct Found {
    PackedDocuments documents;
    Tensor longest;  // empty: a number of the host's
  };
  Tensor constant(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype, const char* what);
  Tensor reduced(const char* name, const Tensor& x);
  void look_for_documents(const Tensor& positions);
  Found found_documents(const Tensor& positions, std::int64_t count);
  Tensor computed(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape, const Found& found);
  std::vector<Tensor> forward(const AttentionShape& shape, std::int64_t documents, Dtype dtype, Accesses inputs);
  std::vector<Tensor> backward(const AttentionShape& shape, std::int64_t documents, Dtype dtype, Accesses inputs);

  Torch& torch_;
};

}  // namespace vramfit::eager
