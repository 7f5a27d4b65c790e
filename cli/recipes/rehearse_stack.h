// A job on a stack, answered by a rehearsal of its recipe.
#pragma once

#include <string>

#include "cli/recipes/stack_recipe.h"
#include "cli/rehearse/rehearsal.h"
#include "job/cluster/cluster.h"

namespace vramfit {

/// On several GPUs rank 0 is played alone: all ranks of the recipes do the same. What the script prints goes to stderr.
/// `python` as find_python() takes it. Throws InputError, ModelError or FaultError.
Rehearsal rehearse_stack(const StackRecipe& recipe, const std::string& model, const std::string& python,
                         const Cluster& cluster);

}  // namespace vramfit
