// The strategies of PyTorch's FSDP, by the names that --sharding has for them.
#pragma once

#include <array>
#include <string_view>

namespace vramfit {

/// In the order of torch/distributed/fsdp/api.py (ShardingStrategy), which numbers them from 1 and writes '_' for '-'.
inline constexpr std::array<std::string_view, 5> kFsdpStrategies{"full-shard", "shard-grad-op", "no-shard",
                                                                 "hybrid-shard", "hybrid-shard-zero2"};

}  // namespace vramfit
