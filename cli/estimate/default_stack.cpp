#include "cli/estimate/default_stack.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace vramfit {
namespace {

Answer answer_as_asked(JobQuestion question, const ModelSpec& spec) {
  Asked asked = read_asked(question);
  Estimate result = estimate_of(question, asked, spec);
  return {.question = std::move(question), .asked = std::move(asked), .estimate = std::move(result)};
}

/// The usual stack's answer, or in `need` what it lacks. What its library can't do at all is lacking, too.
std::optional<Answer> usual_answer(JobQuestion question, const ModelSpec& spec, StackNeed& need) {
  try {
    Answer answer = answer_as_asked(std::move(question), spec);
    if (answer.estimate.verdict != Verdict::not_modelled) return answer;
    need.lacking = answer.estimate.lacking;
    need.answered_by = recipe_command(answer.asked, spec, answer.question.job.model);
  } catch (const InputError& error) {  // it may be wrong for every library: the engine's answer says so
    need.lacking = error.what();
  }
  return std::nullopt;
}

}  // namespace

bool names_library(const JobFlags& flags) {
  if (!flags.stack.empty()) return true;
  return std::ranges::any_of(read_job_choice(flags).fixed,
                             [](const std::string& field) { return field == "runtime" || field == "modeling"; });
}

std::string default_stack_note(std::string_view lacking) {
  if (lacking.empty()) {
    return fmt::format("no --stack given: {}, which most people train with (--stack vramfit: {})",
                       stack_named(kUsualStack).what, stack_named("vramfit").what);
  }
  return fmt::format("no --stack given: {}, as {} has no rules for {}", stack_named("vramfit").what,
                     stack_named(kUsualStack).what, lacking);
}

JobQuestion on_usual_stack(JobQuestion question) {
  if (!names_library(question.job) && !read_cluster_flag(question.job).is_cpu()) question.job.stack = kUsualStack;
  return question;
}

Answer answer_of(JobQuestion question, const ModelSpec& spec) {
  JobQuestion about_usual = on_usual_stack(question);
  if (about_usual.job.stack == question.job.stack) return answer_as_asked(std::move(question), spec);
  StackNeed need{.stack = std::string(kUsualStack), .total = {}};
  std::optional<Answer> usual = usual_answer(std::move(about_usual), spec, need);
  Answer answer = usual ? std::move(*usual) : answer_as_asked(std::move(question), spec);
  std::vector<std::string>& assumptions = answer.estimate.assumptions;
  assumptions.insert(assumptions.begin(), default_stack_note(need.lacking));
  if (!usual) answer.estimate.others.push_back(std::move(need));
  return answer;
}

}  // namespace vramfit
