// The text of configs/gpus.json, compiled in.
#pragma once

#include <string_view>

namespace vramfit {
extern const std::string_view kGpusJson;
}
