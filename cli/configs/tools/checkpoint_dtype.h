// `dtype: auto` of transformers' from_pretrained: weights are loaded in the dtype of the checkpoint.
#pragma once

#include "cli/configs/draft.h"

namespace vramfit {

/// Sets the dtype of the weights where a file leaves it to the checkpoint: of a built-in model it is that of its
/// config.json. Otherwise the job isn't modelled, and the message says what to write instead.
void finish_checkpoint_dtype(Draft& draft);

}  // namespace vramfit
