// The texts of configs/residuals/, compiled in, in the order of ResidualKind.
#pragma once

#include <array>
#include <string_view>

#include "estimator/bound/residuals.h"

namespace vramfit {
extern const std::array<std::string_view, kResidualKinds> kResidualFiles;
}
