// The library that an estimate is for where the question names none: docs/stacks.md#without---stack.
#pragma once

#include <string>
#include <string_view>

#include "cli/estimate/asked.h"

namespace vramfit {

/// What most people train with: transformers' Trainer, with FSDP2 on several GPUs.
inline constexpr std::string_view kUsualStack = "transformers";

/// Whether --stack, a configuration, --runtime or --modeling says for which library the answer is. Throws InputError.
bool names_library(const JobFlags& flags);

/// The question, of the usual stack where it names no library and isn't about CPU ranks. Throws InputError.
JobQuestion on_usual_stack(JobQuestion question);

/// An answer, and the question that it is to, which names its library unless that is this project's engine.
struct Answer {
  JobQuestion question;
  Asked asked;
  Estimate estimate;
};

/// The estimate, for the usual stack where the question names no library. Where that has no rules for the job, for this
/// project's engine; `others` then says what they are missing for. The first assumption says which library it is.
/// CPU ranks are the engine's. Throws InputError.
Answer answer_of(JobQuestion question, const ModelSpec& spec);

/// The assumption that says which library is meant, as none was named; `lacking` is what the usual one has no rules
/// for.
std::string default_stack_note(std::string_view lacking);

}  // namespace vramfit
