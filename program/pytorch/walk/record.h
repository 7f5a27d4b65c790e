// Records a job under PyTorch as a program: its modeling's code, its runtime's hooks, clipping and optimizer are walked
// through for two steps.
#pragma once

#include "program/lowering/lower.h"
#include "program/program.h"
#include "program/pytorch/wrappers/wrapper.h"

namespace vramfit::eager {

/// What rank 0, whose shards are the largest, does with modeling torchtitan under the runtime whose wrapper `make`
/// makes: a list without blocks that readers read and nothing can execute. The first step, which makes the optimizer's
/// states, stands apart. Throws NotModelled for features without rules.
/// What is compiled, or multiplies in FP8, has its own work and so its own time; the rest is as without that
/// (compiled.h).
program::Program record(const program::LowerInputs& inputs, MakeWrapper make);

}  // namespace vramfit::eager
