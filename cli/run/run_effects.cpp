#include "cli/run/run_effects.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/flags/help.h"
#include "job/fields/field_text.h"

namespace vramfit {

void add_run_effects(CLI::App& command, RunEffectFlags& flags) {
  command.add_flag("--no-clip", flags.no_clip, "No gradient clipping in the step")->group(kMemoryFlags);
  command
      .add_option("--save-kind", flags.save_kind,
                  "Checkpoints that the run writes, counted in memory: sharded (run --save), full (--save-full), both, "
                  "or adapters (--save-adapters). Default: none")
      ->type_name("none|sharded|full|both|adapters")
      ->group(kMemoryFlags);
}

RunEffects effects_of(const RunEffectFlags& flags) {
  const std::string kind = flags.save_kind.empty() ? "none" : flags.save_kind;
  try {
    if (kind != "none" && kind != "sharded" && kind != "full" && kind != "both" && kind != "adapters") {
      unknown_value(kind, {"none", "sharded", "full", "both", "adapters"});
    }
  } catch (const InputError& error) {
    throw InputError(fmt::format("--save-kind: {}", error.what()));
  }
  return {.clip = !flags.no_clip,
          .saves = kind == "sharded" || kind == "both",
          .saves_full = kind == "full" || kind == "both",
          .saves_adapters = kind == "adapters"};
}

}  // namespace vramfit
