#include "executor/run/cpu_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace vramfit {

int cpu_threads(int asked, int ranks) {
  if (asked > 0) return asked;
  const bool chosen = std::getenv("OMP_NUM_THREADS") != nullptr;  // NOLINT(concurrency-mt-unsafe): read only
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return chosen ? at::get_num_threads() : std::max(1, cores / std::max(1, ranks));
}

}  // namespace vramfit
