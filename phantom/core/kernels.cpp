#include "phantom/core/kernels.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "phantom/core/architecture.h"
#include "phantom/core/contents.h"
#include "phantom/core/memory.h"
#include "phantom/core/modules.h"
#include "phantom/core/session.h"
#include "phantom/core/streams.h"
#include "phantom/core/trace.h"

namespace vramfit::phantom {

namespace {

struct Variable {
  Module* module = nullptr;
  const char* name = nullptr;
  std::int64_t bytes = 0;
};

struct State {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> kernels;   // by host function
  std::unordered_map<const void*, Kernel*> handles;  // by itself
  std::unordered_map<const void*, Variable> variables;
};

// Never destroyed: kernels are launched from other libraries' destructors.
State& state() {
  static auto* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

constexpr std::uintptr_t kLowestAddress = 1 << 16;  // nothing is ever mapped below

void add_words(const void* bytes, std::size_t size, std::vector<const void*>& pointers) {
  for (std::size_t at = 0; at + sizeof(void*) <= size; at += sizeof(void*)) {
    const void* word = nullptr;
    std::memcpy(&word, static_cast<const char*>(bytes) + at, sizeof word);
    if (reinterpret_cast<std::uintptr_t>(word) >= kLowestAddress) pointers.push_back(word);
  }
}

Status begin_launch(Kernel* kernel) {
  advance();
  if (kernel == nullptr) return Status::invalid_device_function;
  if (tracing()) trace_name("launch", kernel->name);
  return read_facts(*kernel);
}

}  // namespace

void* register_fat_binary(const void* image) { return module_of_fat_binary(image); }

void register_kernel(void* fat_binary, const void* host_function, const char* device_name) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Kernel& kernel = s.kernels[host_function];
  kernel.name = device_name;
  kernel.module = static_cast<Module*>(fat_binary);
  kernel.facts_read = false;
  s.handles[&kernel] = &kernel;
}

void register_variable(void* fat_binary, const void* host_variable, const char* device_name, std::int64_t bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.variables[host_variable] = {static_cast<Module*>(fat_binary), device_name, bytes};
}

Kernel* kernel_of(const void* host_function) {
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    const auto found = s.kernels.find(host_function);
    if (found != s.kernels.end()) return &found->second;
    const auto handle = s.handles.find(host_function);
    if (handle != s.handles.end()) return handle->second;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): a handle that was given out as what it is
  return is_module_kernel(host_function) ? static_cast<Kernel*>(const_cast<void*>(host_function)) : nullptr;
}

void* variable_address(const void* host_variable, int card, std::int64_t* bytes) {
  Variable variable;
  {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = s.variables.find(host_variable);
    if (found == s.variables.end()) return nullptr;
    variable = found->second;
  }
  void* address = nullptr;
  module_variable(variable.module, variable.name, card, &address, bytes);
  return address;
}

Status read_facts(Kernel& kernel) {
  if (kernel.facts_read.load(std::memory_order_acquire)) return kernel.found;
  KernelFacts facts;
  const Status status = module_facts(kernel.module, kernel.name, &facts);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (kernel.facts_read) return kernel.found;
  kernel.facts = std::move(facts);
  kernel.found = status;
  kernel.facts_read.store(true, std::memory_order_release);
  return status;
}

const KernelFacts& facts_of(Kernel& kernel) {
  read_facts(kernel);
  return kernel.facts;
}

bool pointers_of(Kernel& kernel, void** arguments, std::vector<const void*>& pointers) {
  const KernelFacts& facts = facts_of(kernel);
  if (!facts.parameters_known) return false;
  if (arguments == nullptr && !facts.parameters.empty()) return false;
  for (std::size_t n = 0; arguments != nullptr && n < facts.parameters.size(); ++n)
    add_words(arguments[n], facts.parameters[n].bytes, pointers);
  append_written_variables(kernel.module, pointers);
  return true;
}

Status launched(Kernel* kernel, void** arguments) {
  const Status status = begin_launch(kernel);
  if (status != Status::success) return status;
  // Never destroyed: kernels are launched by static objects, too.
  thread_local auto& pointers = *new std::vector<const void*>;  // NOLINT(cppcoreguidelines-owning-memory)
  pointers.clear();
  if (pointers_of(*kernel, arguments, pointers)) {
    touched(pointers, kernel->name);
  } else {
    touched_everything();
  }
  return Status::success;
}

Status launched_packed(Kernel* kernel, const void* buffer, std::size_t bytes) {
  const Status status = begin_launch(kernel);
  if (status != Status::success) return status;
  std::vector<const void*> pointers;
  add_words(buffer, bytes, pointers);
  append_written_variables(kernel->module, pointers);
  touched(pointers, kernel->name);
  return Status::success;
}

Status check_launch(Kernel& kernel, std::int64_t block_threads, std::int64_t dynamic_shared_bytes) {
  const KernelFacts& facts = facts_of(kernel);
  if (block_threads <= 0 || block_threads > facts.max_threads_per_block) return Status::invalid_configuration;
  const std::int64_t allowed =
      std::max<std::int64_t>(kernel.max_dynamic_shared_bytes, kSharedMemoryPerBlock - facts.static_shared_bytes);
  return dynamic_shared_bytes <= allowed ? Status::success : Status::invalid_value;
}

}  // namespace vramfit::phantom
