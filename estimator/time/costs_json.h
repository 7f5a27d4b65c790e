// The text of configs/costs.json, compiled in.
#pragma once

#include <string_view>

namespace vramfit {
extern const std::string_view kCostsJson;
}
