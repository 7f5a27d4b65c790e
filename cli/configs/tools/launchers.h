// Flags of launchers, read as configurations are.
#pragma once

#include "cli/configs/tools.h"

namespace vramfit {

const ConfigTool& accelerate_flags_tool();  // accelerate launch
const ConfigTool& torchrun_tool();
const ConfigTool& deepspeed_flags_tool();  // the deepspeed program
const ConfigTool& trl_program_tool();      // trl sft

}  // namespace vramfit
