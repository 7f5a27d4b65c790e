#include "executor/run/out_of_memory.h"

#include <algorithm>
#include <array>

namespace vramfit {

bool is_out_of_memory(std::string_view message) {
  // The text of CUDA and of the caching allocator, cuBLAS's status, and what NCCL's alloc.h prints in place of CUDA's.
  constexpr std::array<std::string_view, 4> kRefusals{"out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
                                                      "Failed to CUDA calloc", "Failed to CUDA malloc"};
  return std::ranges::any_of(kRefusals,
                             [&](std::string_view refusal) { return message.find(refusal) != std::string_view::npos; });
}

}  // namespace vramfit
