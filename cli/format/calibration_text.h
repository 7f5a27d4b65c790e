// What `vramfit calibrate` says.
#pragma once

#include <string>

#include "cli/format/terminal.h"
#include "estimator/time/calibration.h"

namespace vramfit {

/// Kinds of work with the errors of predictions, figures beside those known before, what wasn't measured, and how the
/// file is used; `output` is "" without one.
std::string calibration_text(const Calibration& calibration, const Cluster& cluster, const Measurements& measured,
                             const std::string& output, const Terminal& terminal);

}  // namespace vramfit
