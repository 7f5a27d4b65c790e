// Choices of TRL's GRPOTrainer as text: "reference,num_iterations=N,steps_per_generation=N".
#pragma once

#include <string>
#include <string_view>

#include "job/job.h"

namespace vramfit {

/// JobField (job/fields/job_fields.h) says what they return and throw. "" for TRL's defaults; otherwise what differs
/// from them, in the order of GrpoChoices.
std::string get_grpo(const Job& job);
void set_grpo(Job& job, std::string_view value);

inline constexpr std::string_view kGrpoHelp =
    "TRL's GRPOTrainer: reference (a reference model: beta is above 0), and num_iterations=N and "
    "steps_per_generation=N, as in GRPOConfig (only with --stack trl-grpo). Default: TRL's";

}  // namespace vramfit
