// `vramfit run --replan K`: a run that finds too little memory is planned again, and continues from its last
// checkpoint.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/run/recorded_run.h"
#include "job/run/run_options.h"
#include "program/files/plan_reader.h"

namespace vramfit {

/// Runs a plan, which lies at `path`, with the other arguments of vramfit-train, until all ranks have ended.
using RunPlan =
    std::function<RunEnd(const PlanFile& plan, const std::string& path, const std::vector<std::string>& arguments)>;

struct ReplannedRun {
  std::string plan_path;
  int most = 0;                        // times that it may be planned again
  std::vector<std::string> arguments;  // of vramfit-train, without --plan and -o
  RunOptions options;                  // what they say
};

/// Runs the plan. When all ranks have ended because one ran out of memory (or, on GPUs, because the allocator had to
/// release cached memory and try again), plans the same job for less memory with what was fixed, and runs again:
/// from the last checkpoint in --save or --resume if there is one. Each time is said on stderr. The last record goes to
/// `-o`; with `-o run.json`, that of attempt N which ran out lies in run.N.json and the plan of the next one in
/// run.N+1.plan.json. Returns the last exit code.
int run_replanning(const ReplannedRun& run, const RunPlan& run_plan);

}  // namespace vramfit
