#include "cli/recipes/rehearse_stack.h"

#include <utility>

#include "base/error.h"
#include "cli/private_folder.h"
#include "cli/recipes/recipe_run.h"
#include "cli/rehearse/phantom_library.h"
#include "cli/rehearse/played_ranks.h"

namespace vramfit {

Rehearsal rehearse_stack(const StackRecipe& recipe, const std::string& model, const std::string& python,
                         const Cluster& cluster) {
  RehearsalRequest request;
  request.cluster = cluster;
  if (cluster.cards() > 1) request.played_rank = 0;
  request.output_to_stderr = true;
  request.environment.emplace_back("HF_HUB_OFFLINE", "1");  // all it needs is there
  if (!recipe.allocator.empty()) request.environment.emplace_back("PYTORCH_CUDA_ALLOC_CONF", recipe.allocator);
  request.library = find_phantom_library();
  sweep_private_folders();
  const RecipeRun run({.name = recipe.recipe, .model = model, .python = python, .values = recipe.values}, cluster,
                      request.played_rank, "");
  const SessionFolder session("");
  const SignalDescriptor signals;
  Rehearsal rehearsal = rehearse_with_senders(request, run.command({}), session.path(), signals);
  rehearsal.notes.insert(rehearsal.notes.end(), run.notes().begin(), run.notes().end());
  return rehearsal;
}

}  // namespace vramfit
