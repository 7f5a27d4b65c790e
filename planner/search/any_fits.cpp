#include "planner/search/any_fits.h"

#include <algorithm>

#include "job/resolve_job.h"
#include "planner/search/best_first.h"
#include "planner/search/changes.h"
#include "planner/search/search.h"

namespace vramfit {

namespace {

// The smallest come first: most often one of the first few fits, or the bound of the very first is too much.
bool any_fits_of(const std::vector<Change>& bases, const PlanRequest& request, Evaluator& evaluator) {
  SearchCounts counts;
  BestFirst queue(evaluator, request, bases, BestBy::need, counts);
  const Bytes capacity = request.cluster.card.memory;
  while (const std::optional<Option> option = queue.next(capacity)) {
    if (is_rejected(request, option->job)) continue;
    const Attempt attempt = evaluator.attempt_to_fit(*option);
    if (attempt.fits) return true;
    queue.retry_last(attempt);
  }
  return false;
}

}  // namespace

bool any_fits(const PlanRequest& asked) {
  PlanRequest request = asked;
  std::vector<std::string> notes;
  request.job = resolve_job(asked.job, asked.spec, asked.cluster, notes);
  Evaluator evaluator(request);
  return std::ranges::any_of(groups_to_search(request),
                             [&](const std::vector<Change>& bases) { return any_fits_of(bases, request, evaluator); });
}

}  // namespace vramfit
