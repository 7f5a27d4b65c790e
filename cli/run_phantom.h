// `vramfit run --device phantom`: the ranks of a plan on cards that don't exist (docs/phantom-run.md).
#pragma once

#include <string>

#include "cli/launch/launch.h"
#include "program/files/plan_reader.h"

namespace vramfit {

struct PhantomRun {
  const PlanFile& plan;
  std::string ranks;   // value of --ranks: "all", a rank, or "" for rank 0
  std::string output;  // where run.json goes, or ""
};

/// Throws InputError if the plan or --ranks asks for something that phantoms can't simulate.
void check_phantom_run(const PhantomRun& run);

/// Runs the ranks as `launch` says, in a session of their own, and prints the prediction next to the rehearsed figures.
/// Returns the ranks' exit code. Throws FaultError when they can't be started.
int run_on_phantoms(const PhantomRun& run, LaunchOptions launch);

}  // namespace vramfit
