// Records a job under PyTorch as a program: its modeling's code, its runtime's hooks, clipping and optimizer are walked
// through for two steps.
#pragma once

#include "job/device.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/program.h"

namespace vramfit::eager {

/// What rank 0, whose shards are the largest, does under runtime pytorch-fsdp2 with modeling torchtitan: a list without
/// blocks that readers read and nothing can execute. The first step, which makes the optimizer's states, stands apart.
/// Throws NotModelled for features without rules.
program::Program record(const Graph& graph, const Job& job, const Device& device, bool clip);

}  // namespace vramfit::eager
