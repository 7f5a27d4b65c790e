// Blocks of DeepSpeed's configuration that are maps of their own.
#pragma once

#include "cli/configs/key_table.h"

namespace vramfit {

/// What is on by default, and not modelled without.
void read_what_is_on(const Setting& setting, Draft& draft);

/// offload_param, or offload_optimizer.
template <bool Parameters>
void read_deepspeed_offload(const Setting& setting, Draft& draft);

/// optimizer: DeepSpeed's own.
void read_deepspeed_optimizer(const Setting& setting, Draft& draft);

}  // namespace vramfit
