#include "cli/format/plan_text.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "base/text/suggest.h"
#include "cli/format/estimate_text.h"
#include "estimator/rank_estimate.h"
#include "estimator/run_effect_text.h"
#include "job/fields/job_fields.h"
#include "job/fields/whole_job_flags.h"

namespace vramfit {
namespace {

/// Whether an alternative fits as the plan does, and trades speed for memory.
bool is_of_frontier(const Candidate& candidate) {
  return candidate.needs.empty() && candidate.estimate.verdict == Verdict::fits;
}

std::string alternative_lines(const Plan& plan) {
  std::string text;
  for (const Candidate& candidate : plan.alternatives) {
    if (!is_of_frontier(candidate)) text += fmt::format("  {}\n", printable(candidate.why, 500));
  }
  return text.empty() ? "" : "\nAlternatives\n" + text;
}

/// "+12 %", "-3.1 %".
std::string change_text(double from, double to) {
  const double percent = 100 * (to / from - 1);
  return fmt::format("{:+.{}f} %", percent, std::abs(percent) < 9.95 ? 1 : 0);
}

/// What each choice saves and costs, from the job as asked for to the plan.
std::string step_lines(const Plan& plan) {
  if (plan.steps.empty()) return "";
  constexpr std::string_view kTitle = "From the job as asked for to the plan";
  std::size_t width = kTitle.size();
  for (const PlanStep& step : plan.steps) width = std::max(width, step.change.size() + 2);
  std::string text = fmt::format("\n{:<{}} {:>8} {:>11}\n", kTitle, width, "GiB", "tokens/s");
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const PlanStep& step = plan.steps[i];
    if (i == 0) {
      text +=
          fmt::format("  {:<{}} {:>8} {:>11.0f}\n", "as asked for", width - 2, gib(step.total), step.tokens_per_second);
      continue;
    }
    const PlanStep& before = plan.steps[i - 1];
    const double gibibytes = gib_of(step.total - before.total);
    text +=
        fmt::format("  {:<{}} {:>+8.2f} {:>11}\n", printable(step.change, 500), width - 2, gibibytes,
                    before.tokens_per_second > 0 ? change_text(before.tokens_per_second, step.tokens_per_second) : "");
  }
  return text;
}

/// The plan and its alternatives between speed and memory, with a bar for the speed of each.
std::string frontier_table(const Plan& plan, const Terminal& terminal) {
  constexpr int kCells = 20;
  const Candidate& chosen = *plan.chosen;
  std::vector<const Candidate*> rows{&chosen};
  for (const Candidate& candidate : plan.alternatives) {
    if (is_of_frontier(candidate)) rows.push_back(&candidate);
  }
  if (rows.size() == 1) return "";
  std::ranges::stable_sort(rows, std::greater{}, &Candidate::tokens_per_second);
  std::string text = fmt::format("\nMemory against speed\n  {:>7} {:>10}\n", "GiB", "tokens/s");
  for (const Candidate* row : rows) {
    const double share = row->tokens_per_second / rows.front()->tokens_per_second;
    text += fmt::format("  {:>7} {:>10.0f}  {}  {}\n", gib(worst_rank(row->estimate).total), row->tokens_per_second,
                        padded_bar(terminal, share, kCells),
                        row == &chosen ? "the plan" : printable(job_as_flags(row->job, chosen.job), 500));
  }
  return text;
}

/// "A global batch of 256 instead of 64 would give 12 % more tokens/s (--micro-batch 4 --grad-accum 8)".
std::string larger_batch_line(const Plan& plan) {
  if (!plan.larger) return "";
  const LargerBatch& larger = *plan.larger;
  const Candidate& chosen = *plan.chosen;
  return fmt::format(
      "A global batch of {} instead of {} would give {:.0f} % more tokens/s (--micro-batch {} --grad-accum {})\n",
      larger.global_batch, chosen.job.global_batch, 100 * (larger.tokens_per_second / chosen.tokens_per_second - 1),
      larger.micro_batch, larger.accumulation);
}

/// "Using only 2xRTX4090 would give 5 % more tokens/s than all 4 GPUs (--gpus 2xRTX4090)".
std::string smaller_cluster_line(const PlanRequest& request, const Plan& plan) {
  if (!plan.smaller_cluster) return "";
  const std::string gpus = printable(plan.smaller_cluster->gpus);
  return fmt::format("Using only {} would give {:.0f} % more tokens/s than all {} GPUs (--gpus {})\n", gpus,
                     100 * (plan.smaller_cluster->tokens_per_second / plan.chosen->tokens_per_second - 1),
                     request.cluster.cards(), gpus);
}

/// Where there is no plan: each change that would do, with what it takes.
std::string remedy_lines(const NoPlan& none, const PlanExtras& extras) {
  constexpr std::string_view kTitle = "What would fit";
  if (none.remedies.empty()) return "";
  std::size_t width = kTitle.size();
  for (const Remedy& each : none.remedies) width = std::max(width, each.flags.size() + 2);
  std::string text = fmt::format("\n{:<{}} {:>8} {:>11}  (predicted)\n", kTitle, width, "GiB", "tokens/s");
  for (const Remedy& each : none.remedies) {
    text += fmt::format("  {:<{}} {:>8.2f} {:>11.0f}", printable(each.flags, 500), width - 2, gib_of(each.total),
                        each.tokens_per_second);
    if (extras.cost) text += "  " + extras.cost(each.tokens_per_second, each.cards);
    text += each.note.empty() ? "\n" : fmt::format("  ({})\n", printable(each.note, 500));
  }
  return text + extras.cost_origin;
}

std::string note_lines(const NoPlan& none) {
  std::string text;
  for (const std::string& note : none.notes) text += fmt::format("Note: {}\n", printable(note, 500));
  return text.empty() ? "" : "\n" + text;
}

/// "Not considered: offload to host memory (--host-memory 64GiB); ...".
std::string not_considered_line(const Plan& plan) {
  if (plan.not_considered.empty()) return "";
  return fmt::format("\nNot considered: {}\n", fmt::join(plan.not_considered, "; "));
}

/// What makes `job` again; one of the engine's also with `vramfit run`.
std::string flags_of(const PlanRequest& request, const Job& job) {
  return printable(whole_job_flags(job, request.cluster), 4000) + run_effect_flags({.clip = request.clip});
}

/// "The closest: --runtime vramfit ...", as it would be run.
std::string closest_line(const PlanRequest& request, const Plan& plan) {
  return plan.closest ? fmt::format("The closest: {}\n", flags_of(request, plan.closest->job)) : "";
}

}  // namespace

std::string plan_text(const PlanRequest& request, const Plan& plan, const Terminal& terminal,
                      const PlanExtras& extras) {
  if (!plan.chosen) {
    constexpr std::string_view kOpening = "no plan";  // of every such sentence
    const NoPlan none = plan.none.value_or(NoPlan{.lacks = plan.why, .needs = {}, .remedies = {}, .notes = {}});
    const std::string head =
        styled(terminal, Style::bad, "NO PLAN") + printable(none.lacks, 1000).substr(kOpening.size());
    return fmt::format("{}\n{}{}{}{}", head, closest_line(request, plan), remedy_lines(none, extras), note_lines(none),
                       not_considered_line(plan));
  }
  const Candidate& chosen = *plan.chosen;
  std::string text = verdict_line(chosen.estimate, terminal);
  text += fmt::format("Flags: {}\n", flags_of(request, chosen.job));
  text += speed_line(chosen.estimate) + larger_batch_line(plan) + smaller_cluster_line(request, plan) + extras.decision;
  text +=
      fmt::format("{} on {}: {}; {} estimate{} made\n\n", printable(request.spec.name), printable(request.cluster.text),
                  printable(chosen.why, 500), plan.search.estimates, plan.search.estimates == 1 ? "" : "s");
  const RankEstimate& rank = worst_rank(chosen.estimate);
  text += breakdown_table(rank, terminal) + managed_line(rank, chosen.estimate.capacity) + "\n" + phase_table(rank);
  text += step_lines(plan) + frontier_table(plan, terminal) + alternative_lines(plan) + not_considered_line(plan);
  text += assumption_lines(chosen.estimate);
  return text;
}

}  // namespace vramfit
