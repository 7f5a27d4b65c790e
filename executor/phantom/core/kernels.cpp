#include "executor/phantom/core/kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "executor/phantom/core/architecture.h"
#include "executor/phantom/core/contents.h"
#include "executor/phantom/core/memory.h"
#include "executor/phantom/core/session.h"
#include "executor/phantom/core/streams.h"
#include "executor/phantom/core/trace.h"

namespace vramfit::phantom {

namespace {

struct Variable {
  std::string name;
  std::int64_t bytes = 0;
  std::map<int, void*> addresses;  // by card
};

struct State {
  std::mutex mutex;
  std::vector<std::unique_ptr<const void*>> fat_binaries;
  std::unordered_map<const void*, Kernel> kernels;
  std::unordered_map<const void*, Variable> variables;
};

// Never destroyed: kernels are launched from other libraries' destructors.
State& state() {
  static State* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

}  // namespace

void* register_fat_binary(const void* image) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.fat_binaries.push_back(std::make_unique<const void*>(image));
  return s.fat_binaries.back().get();
}

void register_kernel(void* fat_binary, const void* host_function, const char* device_name) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Kernel& kernel = s.kernels[host_function];
  kernel.name = device_name;
  kernel.fat_binary = fat_binary;
}

void register_variable(void* /*fat_binary*/, const void* host_variable, const char* device_name, std::int64_t bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.variables[host_variable] = {device_name, bytes, {}};
}

Kernel* kernel_of(const void* host_function) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.kernels.find(host_function);
  return found == s.kernels.end() ? nullptr : &found->second;
}

void* variable_address(const void* host_variable, int card, std::int64_t* bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.variables.find(host_variable);
  if (found == s.variables.end()) return nullptr;
  Variable& variable = found->second;
  *bytes = variable.bytes;
  void*& address = variable.addresses[card];
  // A loaded module's memory is part of what the context takes.
  if (address == nullptr) reserve_range((variable.bytes + kPageBytes - 1) / kPageBytes * kPageBytes, 0, &address);
  return address;
}

void launched(Kernel* kernel, void** arguments) {
  advance();
  if (kernel != nullptr && tracing()) trace_name("launch", kernel->name);
  if (kernel == nullptr || arguments == nullptr || !kernel->facts.parameters_known) return touched_everything();
  std::vector<const void*> pointers;
  for (std::size_t n = 0; n < kernel->facts.parameters.size(); ++n) {
    const auto* words = static_cast<const void* const*>(arguments[n]);
    for (std::uint32_t w = 0; w < kernel->facts.parameters[n].bytes / sizeof(void*); ++w) pointers.push_back(words[w]);
  }
  touched(pointers);
}

int occupancy(const KernelFacts& facts, int block_threads, std::int64_t dynamic_shared_bytes) {
  const CardFacts& card = session().card;
  const Architecture& architecture = architecture_of(card.major, card.minor);
  if (block_threads <= 0 || block_threads > kMaxThreadsPerBlock) return 0;
  const int warps = (block_threads + kWarpSize - 1) / kWarpSize;
  int blocks = std::min(architecture.max_blocks_per_sm, architecture.max_threads_per_sm / (warps * kWarpSize));
  constexpr int kRegistersPerWarpUnit = 256;
  const int warp_registers =
      (facts.registers * kWarpSize + kRegistersPerWarpUnit - 1) / kRegistersPerWarpUnit * kRegistersPerWarpUnit;
  if (warp_registers > 0) blocks = std::min(blocks, kRegistersPerSm / warp_registers / warps);
  constexpr std::int64_t kReservedShared = 1 << 10;  // by the system, a block, from compute capability 8.0
  const std::int64_t shared =
      facts.static_shared_bytes + dynamic_shared_bytes + (card.major >= 8 ? kReservedShared : 0);
  if (shared > 0) blocks = std::min<int>(blocks, static_cast<int>(architecture.shared_memory_per_sm / shared));
  return blocks;
}

}  // namespace vramfit::phantom
