// Flags of launchers, read as configurations are.
#pragma once

#include "cli/configs/tools.h"

namespace vramfit {

const ConfigTool& accelerate_flags_tool();  // accelerate launch
const ConfigTool& torchrun_tool();
const ConfigTool& deepspeed_flags_tool();  // the deepspeed program
const ConfigTool& trl_program_tool();      // trl sft
const ConfigTool& environment_tool();      // NAME=value before a launch
const ConfigTool& scheduler_tool();        // srun, mpirun: nodes, ranks, per_node
const ConfigTool& recipe_flags_tool();     // of torchtune's recipes
const ConfigTool& axolotl_options_tool();  // of "axolotl train", beside keys of its configuration

/// Whether `accelerate launch` has the flag, or TRL for it: accelerate_config.
bool is_launch_argument(std::string_view key);

/// Of arguments of "trl sft" or of its file those for `accelerate launch`, which are taken out of `map`.
void read_launch_arguments(ConfigNode& map, const std::string& file, Draft& draft);

/// What trl 1.16 brings for its --accelerate_config, by name: "zero3". Null for other names.
const char* trls_accelerate_config(std::string_view name);

}  // namespace vramfit
