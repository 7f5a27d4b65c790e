#include "planner/dimensions/dimensions.h"

namespace vramfit {

std::span<const Dimension> dimensions() {
  static const std::vector<Dimension> kDimensions{
      {"sharding", "gathers and reductions over the links", {"sharding"}, sharding_choices},
      {"mesh", "sums over replicas", {"mesh"}, mesh_choices},
      {"reshard", "a second gather of each unit", {"reshard"}, reshard_choices},
      {"wrap", "one gather that nothing hides", {"wrap", "wrap_embeddings"}, wrap_choices},
      {"micro_batch", "more, smaller micro-batches", {"micro_batch", "grad_accum"}, batch_choices},
      {"accumulate", "a reduction of each unit in every micro-batch", {"accumulate"}, accumulate_choices},
      {"checkpointing", "a second forward pass of each block", {"checkpointing"}, checkpointing_choices},
      {"loss", "head and loss in pieces", {"loss"}, loss_choices},
      {"reshard_head", "a second gather of the head", {"reshard_head"}, head_choices},
      {"prefetch", "gathers that nothing hides", {"prefetch"}, prefetch_choices},
  };
  return kDimensions;
}

}  // namespace vramfit
