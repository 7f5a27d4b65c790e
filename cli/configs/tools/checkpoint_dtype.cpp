#include "cli/configs/tools/checkpoint_dtype.h"

#include <string>

#include "model_specs/catalog.h"
#include "model_specs/dtype.h"

namespace vramfit {

void finish_checkpoint_dtype(Draft& draft) {
  if (!draft.is(fact::kWeights, "auto")) return;
  draft.forget(fact::kWeights);
  const std::string model = draft.get(fact::kAskedModel).value_or(draft.get(fact::kModel).value_or(""));
  const CatalogEntry* const entry = find_in_catalog(model);
  if (entry == nullptr) {
    draft.not_modelled(
        "weights in the dtype of a checkpoint that isn't built in: say which it is (dtype: bfloat16), as \"dtype\" of "
        "its config.json does");
    return;
  }
  const Dtype stored = catalog_spec(*entry).stored_dtype;
  draft.assume(fact::kWeights, std::string(dtype_name(stored)), "the dtype of " + model);
}

}  // namespace vramfit
