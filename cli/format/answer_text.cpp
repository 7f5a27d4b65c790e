#include "cli/format/answer_text.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include <fmt/format.h>

#include "base/text/digits_apart.h"
#include "base/text/suggest.h"
#include "cli/format/plan_text.h"
#include "job/fields/whole_job_flags.h"
#include "planner/cost/training_cost.h"
#include "planner/search/search.h"

namespace vramfit {
namespace {

/// "4.31", "43.1", "431": three digits, or all of a larger number.
std::string three_digits(double value) { return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0); }

/// "1 B tokens", "2.5 M tokens", "1 token".
std::string tokens_text(std::int64_t tokens) {
  std::string text = short_count(tokens);
  const std::size_t zeros = text.find(".00 ");
  if (zeros != std::string::npos) text.erase(zeros, 3);
  return text + (tokens == 1 ? " token" : " tokens");
}

/// "4.31 h, 34.5 GPU hours".
std::string hours_text(const TrainingCost& cost) {
  return fmt::format("{} h, {} GPU hours", three_digits(cost.hours), three_digits(cost.gpu_hours));
}

TrainingCost cost_of(const ClusterPlan& made, std::int64_t tokens) {
  return training_cost(tokens, made.plan->chosen->tokens_per_second, made.request.cluster.cards(), made.price);
}

/// "115 US dollars", "115 in the currency of --price".
std::string money_text(const TrainingCost& cost, const Price& price) {
  return fmt::format("{}{}", three_digits(*cost.money),
                     price.is_dollars ? " US dollars" : " in the currency of --price");
}

/// "1 B tokens: 4.31 h, 34.5 GPU hours, 115 US dollars (3.35 per GPU and hour: ...)".
std::string training_line(const ClusterPlan& made, std::int64_t tokens) {
  const TrainingCost cost = cost_of(made, tokens);
  std::string text = fmt::format("Training on {}: {}", tokens_text(tokens), hours_text(cost));
  if (!made.price) return text + "; no price of this GPU is known: --price 2.5/h, per GPU\n";
  return text + fmt::format(", {} ({} per GPU and hour: {})\n", money_text(cost, *made.price),
                            three_digits(made.price->per_gpu_hour), made.price->origin);
}

/// Of what isn't planned: "4.31 h, 34.5 GPU hours, 115 US dollars".
std::string cost_text(const ClusterPlan& made, std::int64_t tokens, double tokens_per_second, std::int64_t gpus) {
  const TrainingCost cost = training_cost(tokens, tokens_per_second, gpus, made.price);
  return hours_text(cost) + (cost.money ? ", " + money_text(cost, *made.price) : "");
}

/// What hours and money of what isn't planned follow from.
std::string cost_origin(const ClusterPlan& made, std::int64_t tokens) {
  const PlanRequest& request = made.request;
  const Efficiency& efficiency = request.efficiency ? *request.efficiency : efficiency_of(request.cluster);
  const std::string hours = fmt::format("Hours are of {} at the predicted speed (figures of the GPU: {})",
                                        tokens_text(tokens), origins_text(efficiency));
  if (!made.price) return hours + "; no price of this GPU is known: --price 2.5/h, per GPU\n";
  return fmt::format("{}\nMoney is {} per GPU and hour: {}\n", hours, three_digits(made.price->per_gpu_hour),
                     made.price->origin);
}

/// What rehearsals found, of the plan and of faster ones.
std::string rehearsal_lines(const ClusterPlan& made) {
  std::string text;
  if (made.plan->rehearsal) {
    const auto& [rank, predicted, reserved, seconds] = *made.plan->rehearsal;
    const int digits = digits_apart(reserved, predicted);
    text = fmt::format("Rehearsed on phantom GPUs: reserved {}, predicted {} (rank {}, {:.1f} s)\n",
                       format_gib(reserved, digits), format_gib(predicted, digits), rank, seconds);
  }
  for (const RejectedJob& rejected : made.request.rejected) {
    text += fmt::format("Rejected: {}: {}\n", printable(whole_job_flags(rejected.job, made.request.cluster), 1000),
                        printable(rejected.why, 500));
  }
  return text;
}

/// In a list, without what would do.
std::string no_plan_text(const Plan& plan) {
  return plan.none ? "no plan: the smallest needs " + printable(plan.none->needs, 300) : printable(plan.why, 300);
}

std::string cluster_row(const ClusterPlan& made, std::optional<std::int64_t> tokens) {
  if (!made.plan) return "can't be: " + printable(made.refusal, 300);
  if (!made.has_plan()) return no_plan_text(*made.plan);
  const Candidate& chosen = *made.plan->chosen;
  std::string text =
      fmt::format("{:>8.0f} tokens/s, {:>5} GiB", chosen.tokens_per_second, gib(worst_total(chosen.estimate)));
  text += fmt::format(", {} x {} x {}", chosen.job.micro_batch, chosen.job.accumulation, chosen.job.sequence);
  if (tokens) {
    const TrainingCost cost = cost_of(made, *tokens);
    text += fmt::format(", {:>6} h", three_digits(cost.hours));
    if (cost.money) text += fmt::format(", {:>6}", money_text(cost, *made.price));
  }
  return text;
}

/// Speeds of unlike batches aren't alike.
std::string batches_note(const PlanAnswer& answer) {
  std::set<std::int64_t> batches;
  for (const ClusterPlan& made : answer.tried) {
    if (made.has_plan()) batches.insert(made.plan->chosen->job.global_batch);
  }
  if (batches.size() < 2 || answer.objective == Objective::largest_batch) return "";
  return fmt::format("  (global batches differ: {})\n", fmt::join(batches, ", "));
}

/// Where the model ends before the memory does.
std::string sequence_note(const PlanAnswer& answer) {
  const ClusterPlan& best = answer.tried[answer.best];
  const std::int64_t positions = best.request.spec.max_position_embeddings;
  if (answer.objective != Objective::longest_sequence || !best.has_plan() || positions <= 0) return "";
  const std::int64_t sequence = best.plan->chosen->job.sequence;
  if (sequence + kSequenceStep <= positions) return "";
  return fmt::format("A sequence of {}: the model has {} positions\n", sequence, positions);
}

/// A line for each; ">" marks the answer.
std::string clusters_table(const PlanAnswer& answer, std::optional<std::int64_t> tokens) {
  std::size_t width = 0;
  for (const ClusterPlan& made : answer.tried) width = std::max(width, made.request.cluster.text.size());
  const bool has_plan = answer.tried[answer.best].has_plan();
  std::string text =
      has_plan
          ? fmt::format("\nClusters, best by {}: tokens/s, memory of a GPU, micro-batch x accumulation x sequence\n",
                        objective_name(answer.objective))
          : "\nClusters\n";
  for (std::size_t i = 0; i < answer.tried.size(); ++i) {
    const ClusterPlan& made = answer.tried[i];
    text += fmt::format("{} {:<{}}  {}\n", i == answer.best && made.has_plan() ? ">" : " ",
                        printable(made.request.cluster.text), width, cluster_row(made, tokens));
  }
  return text + batches_note(answer);
}

}  // namespace

std::string answer_text(const PlanAnswer& answer, std::optional<std::int64_t> tokens,
                        const std::vector<TooLarge>& larger, const Terminal& terminal) {
  const ClusterPlan& best = answer.tried[answer.best];
  const std::string cost = tokens && best.has_plan() ? training_line(best, *tokens) : "";
  PlanExtras extras{.decision = sequence_note(answer) + rehearsal_lines(best) + cost};
  if (tokens) {
    extras.cost = [&](double speed, std::int64_t gpus) { return cost_text(best, *tokens, speed, gpus); };
    extras.cost_origin = cost_origin(best, *tokens);
  }
  std::string text = plan_text(best.request, *best.plan, terminal, extras);
  if (answer.tried.size() > 1) text += clusters_table(answer, tokens);
  if (!larger.empty()) text += "\nLarger models, which have no plan\n";
  for (const TooLarge& each : larger) {
    const std::string why = each.needs.empty() ? each.why : "the smallest needs " + each.needs;
    text += fmt::format("  {}: {}\n", printable(each.model), printable(why, 300));
  }
  return text;
}

}  // namespace vramfit
