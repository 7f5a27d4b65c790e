// What of a command a process with its imports done can run (--warm).
#pragma once

#include <string>
#include <vector>

#include "cli/rehearse/once.h"

namespace vramfit {

struct WarmCommand {
  std::vector<std::string> python;  // with the flags of its own
  std::string script;               // or "": it is a module, -m
};

/// `python SCRIPT ...` or `python -m MODULE ...`, which starts no ranks itself as far as its words say. Throws
/// InputError with the reason if it is anything else.
WarmCommand warm_command(const RehearsalRequest& request, const std::vector<std::string>& words);

}  // namespace vramfit
