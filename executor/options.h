// The flags of vramfit-train.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "executor/observe/chrome_trace.h"
#include "executor/observe/progress.h"
#include "executor/trainer.h"

namespace vramfit {

/// Checkpoints (docs/checkpoints.md).
struct SaveFlags {
  std::string directory;   // sharded ones go here; "": none are written
  std::int64_t every = 0;  // steps between them; 0: only after the last step
  std::int64_t keep = 3;   // committed ones that stay
  std::string full;        // the whole model after the last step; "": none
  std::string resume;      // directory to resume from; "": a new run
};

/// What a run reports and writes about itself (docs/observability.md); "": not written.
struct ObserveFlags {
  ProgressStyle progress = ProgressStyle::automatic;
  std::string metrics;  // JSON lines of rank 0
  std::string trace;    // Chrome trace, a file a rank
  StepRange trace_steps;
  std::string snapshot;  // memory snapshot, a file a rank
};

struct RunOptions {
  std::string plan, output, events;
  std::string device = "auto";
  bool ghosts = false;  // phantom: this rank runs alone
  std::vector<std::string> data;
  int token_bytes = 0;             // 0: by vocabulary size
  std::string weights = "random";  // or a path
  int threads = 0;                 // 0: cores / local ranks
  Bytes budget{-1};                // -1: the plan's cpu-SIZE
  std::int64_t timeout_seconds = 600;
  TrainOptions train;
  DumpOptions dumps;
  SaveFlags save;
  ObserveFlags observe;
  bool help = false, support = false;  // say so and end
};

/// Reads argv[1..]; throws InputError naming the flag.
RunOptions parse_options(std::span<const std::string> arguments);

std::string options_help();

}  // namespace vramfit
