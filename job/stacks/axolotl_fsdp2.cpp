#include "job/stacks/axolotl_fsdp2.h"

namespace vramfit {

bool is_axolotls_fsdp2(const Job& job) {
  return job.runtime == Runtime::pytorch_fsdp2 && job.modeling == Modeling::transformers && !job.wrap_embeddings;
}

}  // namespace vramfit
