// With how many decimals two sizes are printed, so that a comparison shows which is larger.
#pragma once

#include "base/text/units.h"

namespace vramfit {

/// Decimals with which format_gib() prints the two as different numbers: at least `digits`, and those if they are
/// equal.
int digits_apart(Bytes a, Bytes b, int digits = 2);

}  // namespace vramfit
