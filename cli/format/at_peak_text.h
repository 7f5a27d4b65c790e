// What is in memory at the peak, for a person: `estimate --at-peak`.
#pragma once

#include <string>

#include "cli/format/terminal.h"
#include "estimator/at_peak.h"

namespace vramfit {

/// Modules as a tree and the largest tensors: those of at least a fiftieth of the whole, and at most ten tensors.
std::string at_peak_text(const AtPeak& at_peak, const Terminal& terminal);

}  // namespace vramfit
