// The text of configs/prices.json, compiled in.
#pragma once

#include <string_view>

namespace vramfit {
extern const std::string_view kPricesJson;
}
