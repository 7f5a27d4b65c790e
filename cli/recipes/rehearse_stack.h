// A job on a stack, answered by a rehearsal of its recipe.
#pragma once

#include <string>
#include <vector>

#include "cli/recipes/exact_cache.h"
#include "cli/recipes/stack_recipe.h"
#include "job/cluster/cluster.h"

namespace vramfit {

struct StackQuestion {
  const StackRecipe& recipe;
  std::string model, python;  // `python` as find_python() takes it
  const Cluster& cluster;
  std::string asked;        // the answer's first note
  std::string driver = {};  // a note of this time alone, which is not kept
  bool may_be_kept = true;  // false: rehearsed whatever is kept, and not kept
};

/// What was kept of an earlier rehearsal of the same, or a rehearsal now. On several GPUs rank 0 is played alone: all
/// ranks of the recipes do the same. What the script prints goes to stderr. Throws InputError, ModelError or
/// FaultError.
ExactAnswer rehearse_stack(const StackQuestion& question);

}  // namespace vramfit
