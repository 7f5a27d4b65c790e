// Sharding strategies as points on axes. Estimator and executor read the flags; neither tests a name.
#pragma once

#include <array>
#include <string_view>

#include "job/job.h"

namespace vramfit {

struct Sharding {
  std::string_view name, fsdp_name;
  bool parameters = false;    // sharded between uses, and so are gradients after reduction and the optimizer's states
  bool hybrid = false;        // shard within a node, replicate across
  bool reshard = false;       // gathered parameters are released after forward
  bool of_deepspeed = false;  // what no other runtime has
};

inline constexpr std::array kShardings{
    Sharding{.name = "no-shard", .fsdp_name = "NO_SHARD"},
    Sharding{.name = "shard-optimizer", .fsdp_name = "SHARD_OPTIMIZER", .parameters = true, .of_deepspeed = true},
    Sharding{.name = "shard-grad-op", .fsdp_name = "SHARD_GRAD_OP", .parameters = true},
    Sharding{.name = "full-shard", .fsdp_name = "FULL_SHARD", .parameters = true, .reshard = true},
    Sharding{.name = "hybrid-shard", .fsdp_name = "HYBRID_SHARD", .parameters = true, .hybrid = true, .reshard = true},
    Sharding{.name = "hybrid-shard-zero2", .fsdp_name = "_HYBRID_SHARD_ZERO2", .parameters = true, .hybrid = true},
};

/// The row called `name` (either spelling); throws InputError with a suggestion.
const Sharding& sharding_named(std::string_view name);

/// Ranks of the group that keeps slices of a unit between forward and backward (`--reshard N`); 0 without such a group,
/// and also if the group would be all shards, since each shard is such a slice anyway.
std::int64_t reshard_ranks(const Job& job);

}  // namespace vramfit
