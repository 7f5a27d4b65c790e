// What DeepSpeed's ZeRO-3 lets one choose of how much it gathers ahead, and keeps (--zero3-sizes).
#pragma once

#include <cstdint>

namespace vramfit {

/// "auto", until the model is known: the Trainer makes it of the hidden size.
inline constexpr std::int64_t kByHiddenSize = -1;

/// In elements of whole parameters, by the names of DeepSpeed's configuration, with its defaults (0.19,
/// runtime/zero/config.py; all but the last begin with stage3_ there).
struct Zero3Sizes {
  std::int64_t prefetch_bucket_size = 50'000'000;      // gathered ahead, by each module
  std::int64_t param_persistence_threshold = 100'000;  // up to which a parameter stays whole until the update
  std::int64_t max_live_parameters = 1'000'000'000;    // whole at once, beyond which nothing is gathered ahead
  std::int64_t max_reuse_distance = 1'000'000'000;     // up to its next use, within which a parameter stays whole
  std::int64_t sub_group_size = 1'000'000'000;         // of a rank's parts, which are updated together
  bool operator==(const Zero3Sizes&) const = default;
};

}  // namespace vramfit
