#include "planner/answer/largest_model.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "model_specs/catalog.h"
#include "model_specs/parameters.h"

namespace vramfit {

std::vector<ModelSpec> models_of_family(std::string_view family) {
  std::vector<ModelSpec> models;
  std::set<std::string> families;
  for (const CatalogEntry& entry : catalog()) {
    ModelSpec spec = catalog_spec(entry);
    families.insert(spec.model_type);
    if (spec.model_type == family) models.push_back(std::move(spec));
  }
  if (models.empty()) {
    throw InputError(fmt::format("--largest-model {}: the catalog has no model of this family{} (vramfit models)",
                                 printable(family), did_you_mean(family, {families.begin(), families.end()})));
  }
  std::ranges::stable_sort(models, std::greater{}, [](const ModelSpec& spec) { return parameter_count(spec); });
  return models;
}

LargestModel plan_largest(const PlanRequest& request, const std::vector<ModelSpec>& models, const ClusterChoice& choice,
                          Objective objective, const Prices& prices) {
  LargestModel largest;
  for (const ModelSpec& spec : models) {
    PlanRequest with_model = request;
    with_model.spec = spec;
    const bool is_last = &spec == &models.back();
    // Of a model that is too large only what it lacks is said: to find what would do takes longer.
    with_model.names_remedies = is_last;
    try {
      largest.answer = best_plan(with_model, choice, objective, prices);
    } catch (const NotModelled& error) {
      if (is_last) throw;
      largest.larger.push_back({.model = spec.name, .why = error.what()});
      continue;
    }
    const ClusterPlan& best = largest.answer.tried[largest.answer.best];
    if (best.has_plan()) break;
    if (!is_last)
      largest.larger.push_back({.model = spec.name, .why = best.plan->why, .needs = best.plan->none->needs});
  }
  return largest;
}

}  // namespace vramfit
