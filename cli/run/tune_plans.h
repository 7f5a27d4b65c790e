// `vramfit run --tune K`: the best plans run for a few steps each, and the fastest one trains.
#pragma once

#include <memory>
#include <string>

#include "cli/launch/launch.h"
#include "cli/private_folder.h"
#include "job/run/run_options.h"
#include "program/files/plan_reader.h"

namespace vramfit {

/// Of each plan that is tried. The first one, in which kernels are made ready, doesn't count.
inline constexpr int kTuneSteps = 5;

struct TuneRequest {
  const PlanFile& plan;       // whose fixed fields all plans keep
  bool is_planned = false;    // `plan` comes of a search, and so is the best one; else the job as it was given
  int most = 0;               // plans to try
  LaunchOptions launch;       // of the run that follows, but for what it trains
  const RunOptions& options;  // of that run
};

struct TunedPlan {
  int exit_code = 0;                      // of a trial that failed for another reason than memory; 0: there is a plan
  std::string path;                       // of the fastest plan
  std::unique_ptr<PrivateFolder> folder;  // in which it lies
};

/// Throws InputError for phantom GPUs, on which nothing takes time, and for what can't go with --tune.
void check_can_tune(bool on_phantoms, bool replans);

/// Runs the best plans of the same job one after the other on the machine's ranks, from random weights, without
/// writing any file that `options` name. Says each one's tokens per second beside the prediction on stderr. With
/// `-o run.json` the fastest plan is written to run.tuned.plan.json, and what the steps took to run.calibration.json,
/// for --calibration. Throws Error (exit 6) when each of them runs out of
/// memory.
TunedPlan tune(const TuneRequest& request);

}  // namespace vramfit
