// Counts a job under PyTorch: its modeling's code, its runtime's hooks, clipping and optimizer become a ledger.
#pragma once

#include "program/count.h"

namespace vramfit::eager {

/// Runtime pytorch-fsdp2 with modeling torchtitan, of rank 0, whose shards are the largest.
/// Throws NotModelled for features without rules.
Ledger count_eager(const Graph& graph, const Job& job, const Device& device, const CountOptions& options);

}  // namespace vramfit::eager
