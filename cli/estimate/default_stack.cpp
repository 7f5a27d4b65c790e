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

/// What the usual stack has no rules for, and what answers it instead.
struct Lacking {
  std::string feature, answered_by;
};

/// The usual stack's answer, or `lacking`. What its library can't do at all is lacking, too.
std::optional<Answer> usual_answer(JobQuestion question, const ModelSpec& spec, Lacking& lacking) {
  try {
    Answer answer = answer_as_asked(std::move(question), spec);
    if (answer.estimate.verdict != Verdict::not_modelled) return answer;
    lacking.feature = answer.estimate.lacking;
    lacking.answered_by = recipe_command(answer.asked, spec, answer.question.job.model);
  } catch (const InputError& error) {  // it may be wrong for every library: the engine's answer says so
    lacking.feature = error.what();
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
  Lacking lacking;
  std::optional<Answer> usual = usual_answer(std::move(about_usual), spec, lacking);
  Answer answer = usual ? std::move(*usual) : answer_as_asked(std::move(question), spec);
  if (!usual) {
    answer.estimate.others.push_back({.stack = std::string(kUsualStack),
                                      .total = {},
                                      .verdict = Verdict::not_modelled,
                                      .lacking = lacking.feature,
                                      .answered_by = lacking.answered_by});
  }
  std::vector<std::string>& assumptions = answer.estimate.assumptions;
  assumptions.insert(assumptions.begin(), default_stack_note(usual ? "" : lacking.feature));
  return answer;
}

}  // namespace vramfit
