// What PyTorch's stacks take of host memory while they load weights, before training begins.
#pragma once

#include <string>

#include "base/text/units.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "model_specs/spec.h"

namespace vramfit {

/// Of each rank of a node. Weights that are used in the type that their file has stay in its mapped pages, which all
/// ranks share and the kernel gives up when it needs room: they are not counted. Nor is a tensor on its way to the
/// card, nor what the process itself has.
struct HostLoading {
  Bytes copies;             // of weights, in place of the file's: the most at once
  Bytes adapters;           // which no file has
  bool ends_first = false;  // before anything else is made in host memory
  std::string what;         // "weights in fp32 (bf16 in the file)", "" if there are no copies
  std::string unknown;      // what has no rules, "" if all of it has

  Bytes of_rank() const { return copies + adapters; }
};

/// Of a resolved job; nothing for this project's engine, whose program says what it makes there.
HostLoading host_loading(const ModelSpec& spec, const Graph& graph, const Job& job);

}  // namespace vramfit
