// JSON forms of jobs, clusters, estimates, plans, runs and comparisons (configs/schemas/). Text in, text out,
// so that no header needs a JSON library.
#pragma once

#include <string>
#include <string_view>

#include "estimator/estimate.h"
#include "planner/plan.h"

namespace vramfit {

std::string job_to_json(const Job& job);
/// Throws InputError naming `file` and the key for anything unknown, missing or out of range.
Job job_from_json(std::string_view text, const std::string& file);

/// vramfit/estimate@1
std::string estimate_to_json(const Estimate& estimate);

/// vramfit/plan@1: model (with its config.json), job, cluster, prediction, alternatives, search.
std::string plan_to_json(const PlanRequest& request, const Plan& plan);

struct PlanFile {
  ModelSpec spec;
  Job job;
  Cluster cluster;
  std::vector<RankEstimate> predicted_ranks;
  int predicted_worst = 0;
};
PlanFile plan_from_json(std::string_view text, const std::string& file);

}  // namespace vramfit
