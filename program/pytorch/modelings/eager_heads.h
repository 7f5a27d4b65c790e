// What eager attention of models with as many key as query heads has in common: products for each head.
#pragma once

#include <cstdint>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

struct EagerHeads {
  std::int64_t batch = 0, sequence = 0, heads = 0, head_dim = 0;
};

/// [batch * heads, sequence, sequence]: queries times keys, scaled.
Tensor scaled_scores(Torch& torch, const Tensor& q, const Tensor& k, const EagerHeads& of);

/// What the product with the values gave, with a token's heads next to each other again.
Tensor joined_heads(Torch& torch, Tensor out, const EagerHeads& of);

}  // namespace vramfit::eager
