// What an estimated job keeps in host memory, and whether a node has it.
#pragma once

#include "estimator/estimate.h"
#include "program/program.h"
#include "program/run_effects.h"

namespace vramfit {

/// Fills in what lies in host memory of a rank whose total is known: buffers there, and of managed memory what the card
/// has no room for beside all else.
void add_host(RankEstimate& rank, const program::Program& program, const Cluster& cluster);

/// What loading takes there beside such buffers, in PyTorch's stacks. All ranks do the same. `job` is resolved, and
/// `program` its program.
void add_host_loading(RankEstimate& rank, const ModelSpec& spec, const Graph& graph, const Job& job,
                      const program::Program& program);

/// Of the first node. What CPU ranks allocate is host memory, too.
Bytes host_bytes_of_node(const Estimate& e, const Graph& graph, const RunEffects& run);

/// What ranks keep in host memory, of what a node has: says it, and judges it.
void judge_host_memory(Estimate& e, const ModelSpec& spec, const Graph& graph, const RunEffects& run);

}  // namespace vramfit
