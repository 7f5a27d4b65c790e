// What a run does besides its job, as the flags that say so.
#pragma once

#include <string>
#include <string_view>

#include "program/run_effects.h"

namespace vramfit {

/// The value of --save-kind: "none", "sharded", "full", "both" or "adapters".
std::string_view save_kind_of(const RunEffects& run);

/// " --no-clip --save-kind full", to stand behind the flags of the job; "" for what holds without flags.
std::string run_effect_flags(const RunEffects& run);

}  // namespace vramfit
