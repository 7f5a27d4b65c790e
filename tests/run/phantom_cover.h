// The jobs that are predicted and then rehearsed on phantom GPUs: a pairwise cover of all that the executor can be
// asked for on CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/run/vramfit_run.h"

namespace vramfit::testing {

struct PhantomJob {
  CoverJob job;
  std::string gpus;       // "4xA100-80GB"
  int rank = 0;           // that is played
  std::string addresses;  // the order in which the card hands them out
  std::string name() const { return job.name() + " on " + gpus + " as " + std::to_string(rank) + ", " + addresses; }
};

/// What a cover's jobs run on, as values of axes.
struct CoverCards {
  std::vector<std::string> ranks{"1", "4", "8"};
  std::vector<std::string> cards{"H100-80GB", "A100-40GB", "RTX4090", "B200-192GB", "T4"};
  std::vector<std::string> addresses{"ascending", "descending", "shuffled:1", "shuffled:2", "shuffled:3"};
};

/// At least `minimum` jobs; the same for the same seed.
std::vector<PhantomJob> phantom_cover(std::uint64_t seed, std::size_t minimum, const CoverCards& cards = {});

/// Whether the library of own CUDA kernels was built.
bool has_own_kernels();

/// `vramfit run MODEL --device phantom`, two steps, with events recorded.
FinishedRun run_on_phantom(const PhantomJob& job, bool all_ranks = false);

}  // namespace vramfit::testing
