// Which of a model's modules FSDP2 is called with: by torchtitan, by accelerate, by axolotl, by torchtune.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "program/pytorch/wrappers/wrapper.h"

namespace vramfit {

/// In place of a module's index: the output layer by itself, without the norm before it.
inline constexpr std::size_t kOutput = static_cast<std::size_t>(-1);

/// Modules that fully_shard was called with together: gathered before the first of them runs, and released, if at all,
/// after the last one. Of a list of modules, that is what torch/distributed/fsdp/_fully_shard does with its hooks.
struct Fsdp2Unit {
  std::string name;
  std::vector<int> parameters;
  std::size_t first = 0, last = 0;       // modules
  bool reshards = true, is_end = false;  // is_end: of embedding or output
  bool is_adapter = false;               // a matrix of an adapter, which stands behind the unit of its block
  int group = -1;
  /// Whether its forward has begun and wasn't seen to end: until backward is over, what runs then of it has no hooks
  /// (_fsdp_state.py: _modules_to_run_forward).
  bool is_open = false;
};

/// Whether a block is released after its forward, which the last one may not be.
bool block_reshards(const Job& job, bool is_last);

/// As the library of the job's modeling makes them, with parameters in the order in which FSDP2 has them. What is in
/// none of them is the root's.
std::vector<Fsdp2Unit> fsdp2_units(const Graph& graph, const Job& job, const std::vector<eager::Module>& modules);

}  // namespace vramfit
