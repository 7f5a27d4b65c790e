// The texts of configs/efficiency/, compiled in.
#pragma once

#include <vector>

#include "estimator/time/efficiency.h"

namespace vramfit {
extern const std::vector<EfficiencyFile> kEfficiencyFiles;
}
