// Liger Kernel in configurations: whether a Trainer has it, and with which parts.
#pragma once

#include <string>
#include <string_view>

#include "cli/configs/draft.h"

namespace vramfit {

namespace fact {
inline constexpr std::string_view kLiger = "Liger's kernels";        // on, off
inline constexpr std::string_view kLigerPlugin = "axolotl's Liger";  // on: the plugin is there
}  // namespace fact

/// The fact of a part by its name in liger_kernel_config: on, off.
std::string liger_fact(std::string_view part);

/// use_liger_kernel and enable_liger_kernel.
void read_liger(const Setting& setting, Draft& draft);
/// liger_kernel_config.
void read_liger_config(const Setting& setting, Draft& draft);

/// axolotl's plugins, of which Liger's alone has rules.
void read_plugins(const Setting& setting, Draft& draft);
/// axolotl's liger_rope and others.
void read_axolotls_liger(const Setting& setting, Draft& draft);
/// Once all keys of an axolotl file are read: what isn't switched on is off.
void finish_axolotls_liger(Draft& draft);

/// --kernels, of what all files say.
void finish_liger(Draft& draft);

}  // namespace vramfit
