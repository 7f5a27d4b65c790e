#include "executor/meter/registered_memory.h"

#include "executor/meter/peak_counter.h"
#include "executor/meter/runtime_function.h"

namespace vramfit {

namespace {

constexpr std::string_view kPinnedMemory = "pinned host memory";

PeakCounter& registered() {
  static auto* const kRegistered = new PeakCounter;  // leaked: memory is freed after static destructors have run
  return *kRegistered;
}

}  // namespace

void register_host_memory(void* memory, Bytes bytes) {
  static auto* const register_memory =
      runtime_function<int(void*, std::size_t, unsigned)>(kPinnedMemory, "cudaHostRegister");
  constexpr unsigned kDefault = 0;
  if (const int error = register_memory(memory, static_cast<std::size_t>(bytes.n), kDefault); error != 0) {
    throw FaultError(fmt::format("pinning {} of host memory: {} (is there as much, and does ulimit -l allow it?)",
                                 format_gib(bytes), runtime_error(kPinnedMemory, error)));
  }
  registered().add(bytes);
}

void unregister_host_memory(void* memory, Bytes bytes) noexcept {
  if (give_back(kPinnedMemory, "cudaHostUnregister", memory)) registered().remove(bytes);
}

Bytes registered_host_memory() { return registered().peak(); }

}  // namespace vramfit
