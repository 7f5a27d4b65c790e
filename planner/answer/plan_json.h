// Writes plan.json (vramfit/plan@1). program/files/plan_reader.h reads it, so a run needs no planner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/answer/largest_model.h"
#include "planner/plan.h"

namespace vramfit {

/// The chosen job with its model (config.json included), cluster, prediction, alternatives and search. Without a chosen
/// job: the request, `verdict` "no_plan", why, and the alternatives that would help.
std::string plan_to_json(const PlanRequest& request, const Plan& plan);

/// The best plan of an answer; with what it costs to train on `tokens`, if given; of several clusters, what came of
/// each; and larger models that have no plan.
std::string answer_to_json(const PlanAnswer& answer, std::optional<std::int64_t> tokens,
                           const std::vector<TooLarge>& larger = {});

}  // namespace vramfit
