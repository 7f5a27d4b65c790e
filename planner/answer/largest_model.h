// `plan --largest-model FAMILY`: the largest model of a family that has a plan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/objective.h"

namespace vramfit {

/// The catalog's models of a family, by its model_type ("llama"), the largest first. Throws InputError with a
/// suggestion.
std::vector<ModelSpec> models_of_family(std::string_view family);

/// A model for which there is no plan.
struct TooLarge {
  std::string model, why;  // what its memory lacks, without what would do; or what it has no rules for
  std::string needs = {};  // by its smallest job; "" where it has no rules
};

struct LargestModel {
  PlanAnswer answer;             // of the largest model that has a plan; of the smallest, where none has
  std::vector<TooLarge> larger;  // that have none, the largest first
};

/// Tries the models in their order; `request.spec` is replaced. Throws what best_plan throws for the last of them.
LargestModel plan_largest(const PlanRequest& request, const std::vector<ModelSpec>& models, const ClusterChoice& choice,
                          Objective objective, const Prices& prices);

}  // namespace vramfit
