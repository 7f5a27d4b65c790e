#include "executor/meter/registered_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"

namespace vramfit {

namespace {

/// Of CUDA's runtime, which LibTorch has loaded: nothing else here needs it to be linked.
template <typename Function>
Function* runtime_function(const char* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) throw FaultError(fmt::format("pinned host memory: CUDA's runtime has no {}", name));
  return found;
}

struct Registered {
  std::mutex mutex;
  Bytes live, peak;
};
Registered& registered() {
  static auto* const kRegistered = new Registered;  // leaked: memory is freed after static destructors have run
  return *kRegistered;
}

}  // namespace

void register_host_memory(void* memory, Bytes bytes) {
  static auto* const register_memory = runtime_function<int(void*, std::size_t, unsigned)>("cudaHostRegister");
  static auto* const name_of = runtime_function<const char*(int)>("cudaGetErrorString");
  constexpr unsigned kDefault = 0;
  if (const int error = register_memory(memory, static_cast<std::size_t>(bytes.n), kDefault); error != 0) {
    throw FaultError(fmt::format("pinning {} of host memory: {} (is there as much, and does ulimit -l allow it?)",
                                 format_gib(bytes), name_of(error)));
  }
  Registered& r = registered();
  const std::scoped_lock lock(r.mutex);
  r.live += bytes;
  r.peak = std::max(r.peak, r.live);
}

void unregister_host_memory(void* memory, Bytes bytes) noexcept {
  try {
    static auto* const unregister_memory = runtime_function<int(void*)>("cudaHostUnregister");
    (void)unregister_memory(memory);
  } catch (const FaultError&) {  // it goes with the process
    return;
  }
  Registered& r = registered();
  const std::scoped_lock lock(r.mutex);
  r.live -= bytes;
}

Bytes registered_host_memory() {
  Registered& r = registered();
  const std::scoped_lock lock(r.mutex);
  return r.peak;
}

}  // namespace vramfit
