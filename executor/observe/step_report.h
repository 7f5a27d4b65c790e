// What progress and metrics are told about a finished step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "executor/meter/meter.h"
#include "executor/training/trainer.h"

namespace vramfit {

struct StepReport {
  StepResult result{};
  bool phantom = false;                              // losses and speeds mean nothing and are left out
  bool clipped = true;                               // the gradient's norm is known
  std::optional<double> tokens_per_second{}, mfu{};  // of the whole job; MFU where the card's peak is known
  std::vector<MeasuredPhase> phases{};               // of this step; on CPU ranks allocated = reserved = requested
  Bytes requested{}, allocated{}, reserved{};        // the largest of the phases
  std::int64_t retries = 0;                          // of the allocator, since the run began
  Bytes run_peak{};                                  // requested, over the run so far
};

/// What an operator of a cluster wants to know about a run, besides its steps.
struct RunFacts {
  std::string model{}, device{};  // device: cpu, cuda or phantom
  int rank = 0, ranks = 1;
  std::int64_t first_step = 1, steps = 1;
  double flops = 0, peak_flops = 0;  // of a rank and step; of a card and second, 0: not known
};

}  // namespace vramfit
