#include "program/pytorch/modelings/eager_heads.h"

namespace vramfit::eager {

Tensor scaled_scores(Torch& torch, const Tensor& q, const Tensor& k, const EagerHeads& of) {
  Tensor product;
  {
    const Tensor queries = torch.folded_heads(q, of.heads, of.batch, false);
    const Tensor keys = torch.folded_heads(k, of.heads, of.batch, false);
    product =
        torch.batched_product(queries, keys, checked_mul(of.batch, of.heads), {of.sequence, of.sequence, of.head_dim});
  }
  return torch.scale(product);
}

Tensor joined_heads(Torch& torch, Tensor out, const EagerHeads& of) {
  if (of.heads == 1) return out;
  if (of.batch > 1) out = torch.copied_in_backward(out);
  return torch.clone(out);
}

}  // namespace vramfit::eager
