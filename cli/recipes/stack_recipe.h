// Which recipe is the script of a job on a stack (job/stacks/stacks.h), and how it is called for.
#pragma once

#include <string>
#include <vector>

#include "cli/recipes/recipe.h"
#include "job/cluster/cluster.h"
#include "job/job.h"
#include "job/stacks/stacks.h"

namespace vramfit {

struct StackRecipe {
  std::string recipe;
  RecipeValues values;
  std::string allocator;  // what PYTORCH_CUDA_ALLOC_CONF has to be; "" as it is
};

/// `job` is resolved; `fixed` names the fields that the user set, which the recipe must honour. Others than lengths and
/// batches are left to the recipe. Throws NotModelled naming what no recipe has.
StackRecipe recipe_of(const Stack& stack, const Job& job, const std::vector<std::string>& fixed);

/// "vramfit rehearse --recipe trl-sft MODEL --gpus 1xRTX4090 --seq-len 4096".
std::string command_of(const StackRecipe& recipe, const std::string& model, const Cluster& cluster);

}  // namespace vramfit
