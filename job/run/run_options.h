// How a plan is run, beside the job that it holds: one struct, filled from flags (job/run/run_flags.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/units.h"

namespace vramfit {

/// What an optimizer is told. Which options each has, and their defaults: job/optimizers/optimizers.h, whose
/// complete_options() fills in what was not given.
struct OptimizerOptions {
  double learning_rate = 1e-3;                        // of this step; of a run: the peak
  std::map<std::string, double, std::less<>> values;  // by the option's name: "beta1"
  /// Throws std::out_of_range for an option that is not there.
  double operator[](std::string_view option) const;
};

struct TrainOptions {
  std::int64_t steps = 10, warmup = 0;
  OptimizerOptions optimizer;
  double clip = 1.0;           // largest norm of the global gradient; 0: no clipping
  bool clip_is_given = false;  // else a plan without clipping makes it 0
  std::uint64_t seed = 0;
};

/// Without --clip, a run clips where its plan counts that.
inline void clip_as_planned(TrainOptions& train, bool plan_clips) {
  if (!train.clip_is_given && !plan_clips) train.clip = 0;
}

/// Debugging and the parity tests: full tensors by their checkpoint names, gathered on rank 0, fp32.
struct DumpOptions {
  std::string directory;            // "": no dumps
  std::int64_t gradients_step = 0;  // gradients of this step, after accumulation, before clipping; 0: none
  bool logits = false;              // of step 1, each rank and micro-batch
  bool parameters = false;          // after the last step
};

/// Checkpoints (docs/checkpoints.md).
struct SaveFlags {
  std::string directory;   // sharded ones go here; "": none are written
  std::int64_t every = 0;  // steps between them; 0: only after the last step
  std::int64_t keep = 3;   // committed ones that stay
  std::string full;        // the whole model after the last step; "": none
  std::string adapters;    // the adapters after the last step, as PEFT writes them; "": none
  std::string resume;      // directory to resume from; "": a new run
};

enum class ProgressStyle : std::uint8_t { automatic, bar, lines, none };

/// Steps, both ends included.
struct StepRange {
  std::int64_t first = 2, last = 3;
  bool holds(std::int64_t step) const { return first <= step && step <= last; }
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
  std::string adapters;            // PEFT's folder of initial adapters; "": random
  int threads = 0;                 // 0: cores / local ranks
  Bytes budget{-1};                // -1: the plan's cpu-SIZE
  std::int64_t timeout_seconds = 600;
  TrainOptions train;
  DumpOptions dumps;
  SaveFlags save;
  ObserveFlags observe;
  bool help = false, support = false;  // say so and end
};

}  // namespace vramfit
