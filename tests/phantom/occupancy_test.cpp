#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

// cuda_occupancy.h is C: it is NVIDIA's own computation, the reference here.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#include <cuda_occupancy.h>
#pragma GCC diagnostic pop

#include "phantom/core/architecture.h"
#include "phantom/core/kernels.h"
#include "phantom/core/session.h"

using vramfit::phantom::architecture_of;
using vramfit::phantom::KernelFacts;

namespace {

cudaOccDeviceProp session_card() {
  const auto& card = vramfit::phantom::session().card;
  const auto& a = architecture_of(card.major, card.minor);
  cudaOccDeviceProp p{};
  p.computeMajor = card.major;
  p.computeMinor = card.minor;
  p.maxThreadsPerBlock = vramfit::phantom::kMaxThreadsPerBlock;
  p.maxThreadsPerMultiprocessor = a.max_threads_per_sm;
  p.regsPerBlock = p.regsPerMultiprocessor = vramfit::phantom::kRegistersPerSm;
  p.warpSize = vramfit::phantom::kWarpSize;
  p.sharedMemPerBlock = vramfit::phantom::kSharedMemoryPerBlock;
  p.sharedMemPerMultiprocessor = static_cast<std::size_t>(a.shared_memory_per_sm);
  p.numSms = card.sm_count;
  p.sharedMemPerBlockOptin = static_cast<std::size_t>(a.shared_memory_per_block_optin);
  p.reservedSharedMemPerBlock = vramfit::phantom::kReservedSharedPerBlock;
  return p;
}

int reference(const KernelFacts& facts, int threads, std::size_t shared_bytes) {
  cudaOccDeviceProp card = session_card();
  cudaOccFuncAttributes function{};
  function.maxThreadsPerBlock = facts.max_threads_per_block;
  function.numRegs = facts.registers;
  function.sharedSizeBytes = static_cast<std::size_t>(facts.static_shared_bytes);
  function.partitionedGCConfig = PARTITIONED_GC_OFF;
  function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  function.maxDynamicSharedSizeBytes = card.sharedMemPerBlockOptin - function.sharedSizeBytes;
  cudaOccDeviceState state{};
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  cudaOccResult result{};
  REQUIRE(cudaOccMaxActiveBlocksPerMultiprocessor(&result, &card, &function, &state, threads, shared_bytes) ==
          CUDA_OCC_SUCCESS);
  return result.activeBlocksPerMultiprocessor;
}

}  // namespace

TEST_CASE("occupancy is what cuda_occupancy.h computes, for every shape of a kernel") {
  int checked = 0;
  for (const int registers : {8, 24, 32, 40, 64, 65, 96, 128, 168, 255}) {
    for (const int threads : {1, 32, 33, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1000, 1024}) {
      for (const std::int64_t fixed : {0, 16, 1024, 9000, 40000}) {
        for (const std::int64_t dynamic : {0, 1, 4096, 50000, 100000, 180000, 220000}) {
          KernelFacts facts;
          facts.registers = registers;
          facts.static_shared_bytes = fixed;
          if (static_cast<std::size_t>(fixed + dynamic) > session_card().sharedMemPerBlockOptin) continue;
          CAPTURE(registers);
          CAPTURE(threads);
          CAPTURE(fixed);
          CAPTURE(dynamic);
          CHECK(vramfit::phantom::occupancy(facts, threads, dynamic) ==
                reference(facts, threads, static_cast<std::size_t>(dynamic)));
          ++checked;
        }
      }
    }
  }
  CHECK(checked > 3000);
}

TEST_CASE("a block larger than the kernel allows fits never") {
  KernelFacts facts;
  facts.max_threads_per_block = 256;
  CHECK(vramfit::phantom::occupancy(facts, 512, 0) == 0);
  CHECK(vramfit::phantom::occupancy(facts, 256, 0) > 0);
}
