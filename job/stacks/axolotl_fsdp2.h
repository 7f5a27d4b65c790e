// FSDP2 as axolotl (0.19) sets it up (monkeypatch/accelerate/fsdp2.py: fsdp2_prepare_model).
#pragma once

#include "job/job.h"

namespace vramfit {

/// Whether axolotl prepares the model in accelerate's place, which leaves embedding, norm and output layer to the root,
/// and weights in the dtype that they were loaded in.
bool is_axolotls_fsdp2(const Job& job);

}  // namespace vramfit
