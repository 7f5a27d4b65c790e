#include "cli/format/plan_text.h"

#include <fmt/format.h>

#include "base/suggest.h"
#include "cli/format/estimate_text.h"
#include "estimator/rank_estimate.h"
#include "estimator/time/speed.h"
#include "job/fields/job_fields.h"
#include "job/loss_options.h"
#include "model_specs/graph.h"

namespace vramfit {
namespace {

std::string alternative_lines(const Plan& plan) {
  if (plan.alternatives.empty()) return "";
  std::string text = "\nAlternatives\n";
  for (const Candidate& candidate : plan.alternatives) text += fmt::format("  {}\n", printable(candidate.why, 500));
  return text;
}

/// "Step 2.68 s, 6113 tokens/s (1528 per GPU), MFU 41.2 % (predicted)".
std::string speed_line(const PlanRequest& request, const Candidate& chosen) {
  const double utilization = model_flops_utilization(build_graph(request.spec, loss_options(chosen.job)), chosen.job,
                                                     request.cluster.card, chosen.time.step_seconds);
  const auto cards = static_cast<double>(request.cluster.cards());
  return fmt::format("Step {:.{}f} s, {:.0f} tokens/s ({:.0f} per {}){} (predicted)\n", chosen.time.step_seconds,
                     chosen.time.step_seconds < 1 ? 4 : 2, chosen.tokens_per_second, chosen.tokens_per_second / cards,
                     request.cluster.is_cpu() ? "rank" : "GPU",
                     utilization > 0 ? fmt::format(", MFU {:.1f} %", 100 * utilization) : "");
}

}  // namespace

std::string plan_text(const PlanRequest& request, const Plan& plan, const Terminal& terminal,
                      const std::string& decision) {
  if (!plan.chosen) {
    constexpr std::string_view kOpening = "no plan";  // of every such sentence
    return fmt::format("{}{}\n{}", styled(terminal, Style::bad, "NO PLAN"),
                       printable(plan.why, 1000).substr(kOpening.size()), alternative_lines(plan));
  }
  const Candidate& chosen = *plan.chosen;
  std::string text = verdict_line(chosen.estimate, terminal);
  text += fmt::format("Flags: {}\n", printable(job_as_flags(chosen.job, unresolved_job()), 4000));
  text += speed_line(request, chosen) + decision;
  text += fmt::format("{} on {}: {}, {} of them estimated\n\n", printable(request.spec.name),
                      printable(request.cluster.text), printable(chosen.why), plan.search.estimates);
  text += breakdown_table(worst_rank(chosen.estimate), terminal) + "\n" + phase_table(worst_rank(chosen.estimate));
  text += alternative_lines(plan);
  text += assumption_lines(chosen.estimate);
  return text;
}

}  // namespace vramfit
