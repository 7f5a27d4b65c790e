#include "cli/format/plan_text.h"

#include <fmt/format.h>

#include "cli/format/estimate_text.h"
#include "estimator/job_fields.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

std::string alternative_lines(const Plan& plan) {
  if (plan.alternatives.empty()) return "";
  std::string text = "\nAlternatives\n";
  for (const Candidate& candidate : plan.alternatives) text += fmt::format("  {}\n", printable(candidate.why, 500));
  return text;
}

}  // namespace

std::string plan_text(const PlanRequest& request, const Plan& plan, const Terminal& terminal) {
  if (!plan.chosen) {
    constexpr std::string_view kOpening = "no plan";  // of every such sentence
    return fmt::format("{}{}\n{}", styled(terminal, Style::bad, "NO PLAN"),
                       printable(plan.why, 1000).substr(kOpening.size()), alternative_lines(plan));
  }
  const Candidate& chosen = *plan.chosen;
  std::string text = verdict_line(chosen.estimate, terminal);
  text += fmt::format("{} on {}: {:.0f} tokens/s predicted, a step of {:.2f} s\n", printable(request.spec.name),
                      printable(request.cluster.text), chosen.tokens_per_second, chosen.time.step_seconds);
  text += fmt::format("{} (of {} estimated)\n\n", printable(chosen.why), plan.configurations);
  text += breakdown_table(worst_rank(chosen.estimate), terminal) + "\n" + phase_table(worst_rank(chosen.estimate));
  text += alternative_lines(plan);
  text += fmt::format("\nJob: {}\n", printable(job_as_flags(chosen.job, unresolved_job()), 4000));
  return text;
}

}  // namespace vramfit
