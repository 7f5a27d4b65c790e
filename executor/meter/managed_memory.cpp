#include "executor/meter/managed_memory.h"

#include "executor/meter/peak_counter.h"
#include "executor/meter/runtime_function.h"

namespace vramfit {

namespace {

constexpr std::string_view kManagedMemory = "managed memory";

PeakCounter& managed() {
  static auto* const kManaged = new PeakCounter;  // leaked: memory is freed after static destructors have run
  return *kManaged;
}

}  // namespace

void* allocate_managed(Bytes bytes) {
  static auto* const allocate =
      runtime_function<int(void**, std::size_t, unsigned)>(kManagedMemory, "cudaMallocManaged");
  constexpr unsigned kForAll = 1;  // cudaMemAttachGlobal: any stream may touch it
  void* memory = nullptr;
  if (const int error = allocate(&memory, static_cast<std::size_t>(bytes.n), kForAll); error != 0) {
    throw FaultError(fmt::format("allocating {} of managed memory: {} (has the host as much?)", format_gib(bytes),
                                 runtime_error(kManagedMemory, error)));
  }
  managed().add(bytes);
  return memory;
}

void free_managed(void* memory, Bytes bytes) noexcept {
  if (give_back(kManagedMemory, "cudaFree", memory)) managed().remove(bytes);
}

Bytes managed_memory() { return managed().peak(); }

}  // namespace vramfit
