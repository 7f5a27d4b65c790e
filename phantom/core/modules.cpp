#include "phantom/core/modules.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "phantom/core/contents.h"
#include "phantom/core/cubin.h"
#include "phantom/core/fat_binary.h"
#include "phantom/core/memory.h"
#include "phantom/core/ptx.h"
#include "phantom/core/session.h"

namespace vramfit::phantom {

struct Module {
  const void* fat_binary = nullptr;  // still to be read; null once it is
  Status status = Status::success;
  Cubin image;
  std::map<std::string_view, std::unique_ptr<Kernel>> kernels;      // by names in `image`
  std::map<std::pair<const CubinVariable*, int>, void*> addresses;  // by variable and card
};

namespace {

struct State {
  std::recursive_mutex mutex;  // of all modules
  std::unordered_map<const Module*, std::unique_ptr<Module>> modules;
  std::unordered_set<const void*> kernels;
};

// Never destroyed: kernels are launched from other libraries' destructors.
State& state() {
  static auto* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

Module* add(State& s) {
  auto module = std::make_unique<Module>();
  Module* const raw = module.get();
  s.modules.emplace(raw, std::move(module));
  return raw;
}

Status read_ptx_image(std::string_view text, Cubin* image) {
  auto kernels = read_ptx(text);
  if (!kernels) return Status::invalid_ptx;
  image->kernels = std::move(*kernels);
  return Status::success;
}

Status read_cubin_image(std::span<const std::byte> content, Cubin* image) {
  auto cubin = read_cubin(content);
  if (!cubin) return Status::invalid_image;
  const CardFacts& card = session().card;
  const int capability = cubin->capability;
  const bool runs = capability == 0 || (capability / 10 == card.major && capability % 10 <= card.minor);
  if (!runs) return Status::no_binary_for_gpu;
  *image = std::move(*cubin);
  return Status::success;
}

Status read_fat_binary(const void* fat_binary, Cubin* image) {
  const std::size_t bytes = fat_binary_bytes(fat_binary);
  if (bytes == 0) return Status::invalid_image;
  const CardFacts& card = session().card;
  const auto chosen = image_for({static_cast<const std::byte*>(fat_binary), bytes}, card.major, card.minor);
  if (!chosen) return Status::no_binary_for_gpu;
  if (!chosen->is_ptx) return read_cubin_image(chosen->content, image);
  return read_ptx_image({reinterpret_cast<const char*>(chosen->content.data()), chosen->content.size()}, image);
}

void read(Module* module) {
  if (module->fat_binary == nullptr) return;
  module->status = read_fat_binary(std::exchange(module->fat_binary, nullptr), &module->image);
}

Status read_image(const void* image, Cubin* out) {
  if (const void* const inner = unwrap(image)) image = inner;
  if (fat_binary_bytes(image) != 0) return read_fat_binary(image, out);
  const auto* const start = static_cast<const char*>(image);
  if (std::memcmp(start, "\177ELF", 4) == 0) {
    return read_cubin_image({static_cast<const std::byte*>(image), elf_bytes(image)}, out);
  }
  return read_ptx_image(start, out);
}

// A loaded module's memory is part of what the context takes, so only addresses are needed.
void* make_variable(const CubinVariable& variable) {
  void* address = nullptr;
  const std::int64_t bytes = (variable.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (reserve_range(std::max(bytes, kPageBytes), 0, &address) != Status::success) return nullptr;
  if (variable.initial.empty()) {
    fill(address, 0, 1, variable.bytes);
  } else {
    copy(address, variable.initial.data(), variable.bytes);
  }
  return address;
}

}  // namespace

Module* module_of_fat_binary(const void* wrapper) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Module* const module = add(s);
  module->fat_binary = unwrap(wrapper);
  if (module->fat_binary == nullptr) module->status = Status::invalid_image;
  return module;
}

Status load_module(const void* image, Module** module) {
  *module = nullptr;
  if (image == nullptr) return Status::invalid_value;
  Cubin read_from;
  const Status status = read_image(image, &read_from);
  if (status != Status::success) return status;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  *module = add(s);
  (*module)->image = std::move(read_from);
  return Status::success;
}

Status unload_module(Module* module) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.modules.find(module);
  if (found == s.modules.end()) return Status::invalid_handle;
  for (const auto& [name, kernel] : module->kernels) s.kernels.erase(kernel.get());
  for (const auto& [key, address] : module->addresses) {
    if (const auto block = find_block(address)) free_range(address, block->bytes);
  }
  s.modules.erase(found);
  return Status::success;
}

bool is_module(const Module* module) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.modules.contains(module);
}

Status module_kernel(Module* module, std::string_view name, Kernel** kernel) {
  *kernel = nullptr;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  read(module);
  if (module->status != Status::success) return module->status;
  const auto found = module->image.kernels.find(name);
  if (found == module->image.kernels.end()) return Status::not_found;
  auto& slot = module->kernels[found->first];
  if (!slot) {
    slot = std::make_unique<Kernel>();
    slot->name = found->first;
    slot->module = module;
    slot->facts = found->second;
    slot->facts_read = true;
    s.kernels.insert(slot.get());
  }
  *kernel = slot.get();
  return Status::success;
}

std::vector<Kernel*> module_kernels(Module* module) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  read(module);
  std::vector<Kernel*> kernels;
  for (const auto& [name, facts] : module->image.kernels) {
    Kernel* kernel = nullptr;
    if (module_kernel(module, name, &kernel) == Status::success) kernels.push_back(kernel);
  }
  return kernels;
}

Status module_variable(Module* module, std::string_view name, int card, void** address, std::int64_t* bytes) {
  *address = nullptr;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  read(module);
  if (module->status != Status::success) return module->status;
  const auto found = module->image.variables.find(name);
  if (found == module->image.variables.end()) return Status::not_found;
  void*& slot = module->addresses[{&found->second, card}];
  if (slot == nullptr) slot = make_variable(found->second);
  *address = slot;
  *bytes = found->second.bytes;
  return slot == nullptr ? Status::out_of_memory : Status::success;
}

Status module_facts(Module* module, std::string_view name, KernelFacts* facts) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  read(module);
  if (module->status != Status::success) return module->status;
  const auto found = module->image.kernels.find(name);
  if (found == module->image.kernels.end()) return Status::not_found;
  *facts = found->second;
  return Status::success;
}

void append_written_variables(Module* module, std::vector<const void*>& pointers) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& [key, address] : module->addresses) {
    if (!key.first->is_constant) pointers.push_back(address);
  }
}

bool is_module_kernel(const void* handle) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.kernels.contains(handle);
}

}  // namespace vramfit::phantom
