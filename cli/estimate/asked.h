// What "vramfit estimate" is asked, and its answer, for whoever else needs the same: what-ifs and "vramfit explain".
#pragma once

#include <string>
#include <vector>

#include "cli/flags/job_flags.h"
#include "cli/recipes/stack_recipe.h"
#include "cli/run/run_effects.h"
#include "estimator/estimate.h"
#include "job/stacks/stacks.h"

namespace vramfit {

/// What was typed, unread.
struct JobQuestion {
  JobFlags job;
  std::string network;
  std::vector<std::string> calibration;
  RunEffectFlags run;
};

/// What the run does besides its job, by its flags and by the files that --job names. Throws InputError.
RunEffects effects_of(const JobQuestion& question);

/// What was asked for, on which stack.
struct Asked {
  const Stack* stack;
  JobChoice choice;
  Cluster cluster;
};

/// Throws InputError.
Asked read_asked(const JobQuestion& question);

/// Sets the network that the job's file was made for, where --network says nothing and there are several nodes.
void keep_network(const JobFlags& flags, Cluster& cluster);

/// The recipe of the asked stack. Throws NotModelled where it lacks what was set.
StackRecipe recipe_of(const Asked& asked, const ModelSpec& spec);

/// The command that rehearses the files that the flags name, where the program that they are for trains with them as
/// they are; otherwise "".
std::string own_rehearsal(const JobFlags& flags, const Cluster& cluster);

/// The command that rehearses the stack's recipe; "" where no recipe has what was set.
std::string recipe_command(const Asked& asked, const ModelSpec& spec, const std::string& model);

/// The command that rehearses the Trainer's recipe for a job that this project's engine was asked for; "" where that is
/// another job's, or the recipe lacks what was set.
std::string trainer_command(const Asked& asked, const ModelSpec& spec, const std::string& model);

/// The estimate with speed; `suggestions` as in EstimateOptions.
Estimate estimate_of(const JobQuestion& question, const Asked& asked, const ModelSpec& spec, bool suggestions = true);

}  // namespace vramfit
