// What the Trainer makes of ZeRO-3's sizes that are "auto" (transformers 5.23, integrations/deepspeed.py:
// trainer_config_finalize).
#pragma once

#include <cstdint>

namespace vramfit {

inline std::int64_t auto_prefetch_bucket_size(std::int64_t hidden) {
  const auto side = static_cast<double>(hidden);
  return static_cast<std::int64_t>(0.9 * side * side);  // rounded as there
}
inline std::int64_t auto_param_persistence_threshold(std::int64_t hidden) { return 10 * hidden; }

}  // namespace vramfit
