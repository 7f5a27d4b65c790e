#include "cli/recipes/rehearse_stack.h"

#include <chrono>
#include <utility>

#include <fmt/chrono.h>

#include "base/error.h"
#include "cli/private_folder.h"
#include "cli/recipes/recipe_run.h"
#include "cli/rehearse/ghosts/played_ranks.h"
#include "cli/rehearse/processes/phantom_library.h"

namespace vramfit {

namespace {

ExactAnswer answer_of(const Rehearsal& rehearsal) {
  return {.verdict = rehearsal.verdict, .text = rehearsal_text(rehearsal), .json = rehearsal_to_json(rehearsal)};
}

/// As it is printed the next time.
ExactAnswer kept_answer_of(Rehearsal rehearsal) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  rehearsal.notes.insert(rehearsal.notes.begin(),
                         fmt::format("from the cache: rehearsed on {:%F at %R} UTC with the same script, model, "
                                     "libraries and GPUs; --no-cache rehearses it again",
                                     fmt::gmtime(now)));
  return answer_of(rehearsal);
}

}  // namespace

ExactAnswer rehearse_stack(const StackQuestion& question) {
  RehearsalRequest request;
  request.cluster = question.cluster;
  if (question.cluster.cards() > 1) request.played_rank = 0;
  request.output_to_stderr = true;
  request.environment.emplace_back("HF_HUB_OFFLINE", "1");  // all it needs is there
  if (!question.recipe.allocator.empty()) {
    request.environment.emplace_back("PYTORCH_CUDA_ALLOC_CONF", question.recipe.allocator);
  }
  request.library = find_phantom_library();
  sweep_private_folders();
  const RecipeRun run({.name = question.recipe.recipe,
                       .model = question.model,
                       .python = question.python,
                       .values = question.recipe.values},
                      question.cluster, request.played_rank, "");
  ExactCache cache(question.may_be_kept ? exact_cache_folder() : std::filesystem::path{});
  const std::string key = exact_key(request, run, question.model);
  if (const std::optional<ExactAnswer> kept = cache.find(key)) return *kept;
  const SessionFolder session("");
  const SignalDescriptor signals;
  Rehearsal rehearsal = rehearse_with_senders(request, run.command({}), session.path(), signals);
  rehearsal.notes.insert(rehearsal.notes.begin(), question.asked);
  rehearsal.notes.insert(rehearsal.notes.end(), run.notes().begin(), run.notes().end());
  cache.put(key, kept_answer_of(rehearsal));
  rehearsal.notes.insert(rehearsal.notes.end(), cache.notes().begin(), cache.notes().end());
  if (!question.driver.empty()) rehearsal.notes.push_back(question.driver);
  return answer_of(rehearsal);
}

}  // namespace vramfit
