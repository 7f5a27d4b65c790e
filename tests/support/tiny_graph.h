// A hand-made chain for tests of the lists: embedding, two blocks of a linear and an activation with a residual, head,
// loss.
#pragma once

#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "program/schedules/schedule.h"

namespace vramfit::testing {

struct TinySizes {
  std::int64_t vocab = 10, hidden = 4;
  int blocks = 2;
  bool tied = false;
};

Graph tiny_graph(const TinySizes& sizes = {});

/// fp32, one rank, micro-batch 1, sequence 8, everything else by default.
Job tiny_job();

/// As if all segments had a backward pass. Gradients are clipped, unless units are updated within backward.
std::vector<Instruction> schedule_of(const Job& job, const Graph& graph);

}  // namespace vramfit::testing
