// Addresses and pages apart (cuMemAddressReserve, cuMemCreate, cuMemMap), as expandable segments use them.
#include <sys/mman.h>

#include <iterator>

#include "phantom/core/contents.h"
#include "phantom/core/memory_state.h"
#include "phantom/core/session.h"
#include "phantom/core/trace.h"

namespace vramfit::phantom {

namespace {

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

bool is_whole(std::uintptr_t address, std::int64_t bytes) {
  return address % static_cast<std::uintptr_t>(kPageBytes) == 0 && bytes > 0 && bytes % kPageBytes == 0;
}

void drop_unused(MemoryState& state, std::uint64_t handle) {
  const auto pages = state.pages.find(handle);
  if (pages == state.pages.end() || !pages->second.released || pages->second.mapped > 0) return;
  charge(state, pages->second.card, -pages->second.bytes);
  state.pages.erase(pages);
}

}  // namespace

Status reserve_range(std::int64_t bytes, std::int64_t alignment, void** address) {
  *address = nullptr;
  if (bytes <= 0 || bytes % kPageBytes != 0) return Status::invalid_value;
  const std::int64_t step = alignment > kPageBytes ? alignment : kPageBytes;
  void* mapped = mmap(nullptr, static_cast<std::size_t>(bytes + step), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return Status::out_of_memory;
  const auto unit = static_cast<std::uintptr_t>(step);
  const std::uintptr_t base = (number(mapped) + unit - 1) / unit * unit;
  const std::uintptr_t end = base + static_cast<std::uintptr_t>(bytes);
  if (base > number(mapped)) munmap(mapped, base - number(mapped));
  const std::uintptr_t mapped_end = number(mapped) + static_cast<std::uintptr_t>(bytes + step);
  *address = reinterpret_cast<void*>(base);                                      // NOLINT(performance-no-int-to-ptr)
  if (mapped_end > end) munmap(reinterpret_cast<void*>(end), mapped_end - end);  // NOLINT(performance-no-int-to-ptr)
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  state.blocks[base] = {MemoryKind::virtual_range, 0, base, bytes};
  trace("reserve", 0, *address, bytes);
  return Status::success;
}

Status free_range(void* address, std::int64_t bytes) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const auto found = state.blocks.find(number(address));
  if (found == state.blocks.end() || found->second.kind != MemoryKind::virtual_range || found->second.bytes != bytes) {
    return Status::invalid_value;
  }
  forget(number(address), bytes);
  state.blocks.erase(found);
  munmap(address, static_cast<std::size_t>(bytes));
  trace("unreserve", 0, address, bytes);
  return Status::success;
}

Status create_pages(int card, std::int64_t bytes, std::uint64_t* handle) {
  *handle = 0;
  if (bytes <= 0 || bytes % kPageBytes != 0) return Status::invalid_value;
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  Status status = open_card(state, card);
  if (status == Status::success) status = charge(state, card, bytes);
  if (status == Status::success) {
    *handle = state.next_handle++;
    state.pages[*handle] = {card, bytes, 0, false};
  }
  trace("create", card, nullptr, bytes, static_cast<int>(status));
  return status;
}

Status release_pages(std::uint64_t handle) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const auto pages = state.pages.find(handle);
  if (pages == state.pages.end() || pages->second.released) return Status::invalid_value;
  pages->second.released = true;
  trace("release", pages->second.card, nullptr, pages->second.bytes);
  drop_unused(state, handle);
  return Status::success;
}

Status map_pages(void* address, std::int64_t bytes, std::uint64_t handle) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const auto pages = state.pages.find(handle);
  const Block* block = block_at(state, number(address));
  const bool is_range =
      block != nullptr && block->kind == MemoryKind::virtual_range &&
      number(address) + static_cast<std::uintptr_t>(bytes) <= block->base + static_cast<std::uintptr_t>(block->bytes);
  if (pages == state.pages.end() || pages->second.bytes != bytes || !is_range || !is_whole(number(address), bytes)) {
    return Status::invalid_value;
  }
  const auto next = state.mappings.lower_bound(number(address));
  if (next != state.mappings.end() && next->first < number(address) + static_cast<std::uintptr_t>(bytes)) {
    return Status::invalid_value;
  }
  if (next != state.mappings.begin()) {
    const auto& [start, before] = *std::prev(next);
    if (start + static_cast<std::uintptr_t>(before.bytes) > number(address)) return Status::invalid_value;
  }
  state.mappings[number(address)] = {bytes, handle};
  state.blocks[block->base].card = pages->second.card;
  ++pages->second.mapped;
  trace("map", pages->second.card, address, bytes);
  return Status::success;
}

Status unmap_pages(void* address, std::int64_t bytes) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const std::uintptr_t end = number(address) + static_cast<std::uintptr_t>(bytes);
  auto mapping = state.mappings.find(number(address));
  if (mapping == state.mappings.end()) return Status::invalid_value;
  while (mapping != state.mappings.end() && mapping->first < end) {
    const std::uint64_t handle = mapping->second.handle;
    forget(mapping->first, mapping->second.bytes);
    --state.pages.at(handle).mapped;
    mapping = state.mappings.erase(mapping);
    drop_unused(state, handle);
  }
  trace("unmap", 0, address, bytes);
  return Status::success;
}

}  // namespace vramfit::phantom
