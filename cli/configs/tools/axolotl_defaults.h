// What axolotl does where its file says nothing (axolotl 0.19).
#pragma once

#include "cli/configs/draft.h"

namespace vramfit {

/// The dtypes of weights, and which FSDP it is.
void finish_axolotls_model(Draft& draft);

/// Everything else; `root` is the file, whose keys have been read.
void finish_axolotl(const ConfigNode& root, Draft& draft);

}  // namespace vramfit
