// `vramfit run --device phantom`: the ranks of a plan on cards that don't exist (docs/phantom-run.md).
#pragma once

#include <optional>
#include <string>

#include "cli/launch/launch.h"
#include "cli/run/recorded_run.h"
#include "program/files/plan_reader.h"

namespace vramfit {

struct PhantomRun {
  const PlanFile& plan;
  std::string ranks;   // value of --ranks: "all", a rank, or "" for rank 0
  std::string output;  // where run.json goes, or ""
};

/// Runs the ranks of `plan` as `launch` says, in a session of their own: rank `played` alone with the others simulated,
/// or all. Throws FaultError when they can't be started.
RunEnd run_recorded_on_phantoms(const PlanFile& plan, std::optional<int> played, LaunchOptions launch);

/// The rank that --ranks asks for; none: every rank has its process. Throws InputError.
std::optional<int> played_rank(const PhantomRun& run);

/// Throws InputError if the plan or --ranks asks for something that phantoms can't simulate.
void check_phantom_run(const PhantomRun& run);

/// Prints the prediction next to what a record says.
void show_comparison(const PlanFile& plan, const std::string& record);

/// Runs the ranks as `launch` says, in a session of their own, and prints the prediction next to the rehearsed figures.
/// Returns the ranks' exit code. Throws FaultError when they can't be started.
int run_on_phantoms(const PhantomRun& run, LaunchOptions launch);

}  // namespace vramfit
