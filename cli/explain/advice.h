// What would have helped where memory ran out, from the figures alone.
#pragma once

#include <string>
#include <vector>

#include "cli/explain/card_use.h"
#include "cli/explain/code_site.h"

namespace vramfit {

struct Advice {
  std::string what;     // "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
  std::string why;      // the figures that it follows from
  bool enough = false;  // whether it makes room for what was asked for; the job may ask for more afterwards
};

/// Those that are enough come first. Never empty: without figures, it says what to look at.
std::vector<Advice> advice_for(const CardUse& use, const CodeSite& site);

}  // namespace vramfit
