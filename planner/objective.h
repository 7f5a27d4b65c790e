// What a plan is to be best at, and over which clusters.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/cluster_choice.h"
#include "planner/cost/prices.h"
#include "planner/plan.h"

namespace vramfit {

enum class Objective {
  throughput,        // the most tokens per second
  cost,              // the least money per token
  fewest_gpus,       // among the clusters; of equally many the faster
  longest_sequence,  // in steps of kSequenceStep
  largest_batch,     // sequences that a GPU computes at once
  headroom,          // the least memory, and among clusters the largest share of it left free
};

inline constexpr std::int64_t kSequenceStep = 256;

std::string_view objective_name(Objective objective);
/// Throws InputError with a suggestion.
Objective parse_objective(std::string_view name);

/// What came of one cluster.
struct ClusterPlan {
  PlanRequest request;       // with what the objective has set
  std::optional<Plan> plan;  // none: the job can't be on this cluster
  std::exception_ptr error;  // then
  std::string refusal;       // and its message
  std::optional<Price> price;
  bool has_plan() const { return plan && plan->chosen; }
};

struct PlanAnswer {
  Objective objective = Objective::throughput;
  std::vector<ClusterPlan> tried;  // in the order given
  std::size_t best = 0;  // of those with a plan; without any, the one on which least is missing, with what would do
};

/// Plans on each cluster, whatever `request.cluster` is; how many GPUs are needed is searched for by doubling and
/// halving, which takes it that more GPUs hold what fewer do. Throws InputError: if the objective decides a field that
/// the user set, if a price is missing that it needs, or if no cluster can have the job.
PlanAnswer best_plan(const PlanRequest& request, const ClusterChoice& choice, Objective objective,
                     const Prices& prices);

}  // namespace vramfit
