// Flags of commands that predict: what a run will do to memory besides its job.
#pragma once

#include <string>

#include "program/run_effects.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace vramfit {

struct RunEffectFlags {
  bool no_clip = false;
  std::string save_kind;  // "": not said, which is none unless --job says another
  bool saves() const { return !save_kind.empty() && save_kind != "none"; }
};

/// Adds --no-clip and --save-kind to a command. `flags` must outlive it.
void add_run_effects(CLI::App& command, RunEffectFlags& flags);

/// Throws InputError for an unknown kind of save.
RunEffects effects_of(const RunEffectFlags& flags);

}  // namespace vramfit
