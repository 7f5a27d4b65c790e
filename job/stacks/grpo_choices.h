// What TRL's GRPOTrainer is asked for beside its defaults (--grpo).
#pragma once

#include <cstdint>

namespace vramfit {

/// By the names of GRPOConfig.
struct GrpoChoices {
  bool has_reference = false;             // beta above 0: the log-probabilities of a reference, too
  std::int64_t num_iterations = 1;        // how often completions are trained on
  std::int64_t steps_per_generation = 0;  // micro-batches that completions are made for at once; 0: those of a step
  bool operator==(const GrpoChoices&) const = default;
};

}  // namespace vramfit
