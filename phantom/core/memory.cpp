#include "phantom/core/memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "phantom/core/contents.h"
#include "phantom/core/memory_state.h"
#include "phantom/core/record.h"
#include "phantom/core/session.h"
#include "phantom/core/shared_cards.h"
#include "phantom/core/trace.h"
#include "phantom/core/visible_cards.h"

namespace vramfit::phantom {

namespace {

constexpr std::int64_t kSlotBytes = 512;        // cudaMalloc's alignment
constexpr std::int64_t kSharedBelow = 1 << 20;  // smaller blocks share a page

std::int64_t pages_for(std::int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }
std::int64_t slots_for(std::int64_t bytes) { return (bytes + kSlotBytes - 1) / kSlotBytes; }

void* map_addresses(std::int64_t bytes, int access) {
  void* address =
      mmap(nullptr, static_cast<std::size_t>(bytes), access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

// Ranges start at a page's boundary; the first page is left out to get there.
std::uintptr_t reserve_card_range(std::int64_t pages) {
  void* address = map_addresses((pages + 1) * kPageBytes, PROT_NONE);
  if (address == nullptr) {
    std::fprintf(stderr, "vramfit phantom: cannot reserve %lld MiB of addresses for a card (is there a ulimit -v?)\n",
                 static_cast<long long>(pages * kPageBytes >> 20));
    std::_Exit(1);
  }
  const auto page = static_cast<std::uintptr_t>(kPageBytes);
  return (reinterpret_cast<std::uintptr_t>(address) + page - 1) / page * page;
}

CardMemory& card_memory(MemoryState& state, int card) {
  CardMemory& memory = state.cards[static_cast<std::size_t>(card)];
  if (!memory.space) {
    const Session& s = session();
    const std::int64_t pages = address_pages(s.card.memory_bytes);
    memory.base = reserve_card_range(pages);
    memory.space =
        std::make_unique<AddressSpace>(s.settings.addresses, address_seed(s.settings.address_seed, card), pages);
  }
  return memory;
}

std::uintptr_t page_address(const CardMemory& memory, std::int64_t page) {
  return memory.base + static_cast<std::uintptr_t>(page * kPageBytes);
}

Status take_pages(MemoryState& state, int card, std::int64_t count, std::int64_t* first) {
  if (const Status status = charge(state, card, count * kPageBytes); status != Status::success) return status;
  const auto taken = card_memory(state, card).space->take(count);
  if (!taken) {
    charge(state, card, -count * kPageBytes);
    return Status::out_of_memory;
  }
  *first = *taken;
  return Status::success;
}

Status allocate_shared(MemoryState& state, int card, std::int64_t bytes, std::uintptr_t* address) {
  CardMemory& memory = card_memory(state, card);
  for (auto& [page, shared] : memory.shared) {
    if (const auto slot = shared.slots.take(slots_for(bytes))) {
      ++shared.blocks;
      *address = page_address(memory, page) + static_cast<std::uintptr_t>(*slot * kSlotBytes);
      return Status::success;
    }
  }
  std::int64_t page = 0;
  if (const Status status = take_pages(state, card, 1, &page); status != Status::success) return status;
  auto& shared = memory.shared[page];
  shared = {page, 1, AddressSpace(AddressOrder::ascending, 0, kPageBytes / kSlotBytes)};
  *address =
      page_address(memory, page) + static_cast<std::uintptr_t>(*shared.slots.take(slots_for(bytes)) * kSlotBytes);
  return Status::success;
}

void free_pages(MemoryState& state, int card, std::int64_t first, std::int64_t count) {
  CardMemory& memory = card_memory(state, card);
  memory.space->give_back(first, count);
  forget(page_address(memory, first), count * kPageBytes);
  charge(state, card, -count * kPageBytes);
}

void free_device_block(MemoryState& state, const Block& block) {
  CardMemory& memory = card_memory(state, block.card);
  const auto offset = static_cast<std::int64_t>(block.base - memory.base);
  const std::int64_t page = offset / kPageBytes;
  const auto shared = memory.shared.find(page);
  if (shared == memory.shared.end()) return free_pages(state, block.card, page, pages_for(block.bytes));
  shared->second.slots.give_back(offset % kPageBytes / kSlotBytes, slots_for(block.bytes));
  if (--shared->second.blocks > 0) return;
  memory.shared.erase(shared);
  free_pages(state, block.card, page, 1);
}

Status free_block(void* address, bool (*is_kind)(MemoryKind)) {
  if (address == nullptr) return Status::success;
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const auto found = state.blocks.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == state.blocks.end() || !is_kind(found->second.kind)) return Status::invalid_value;
  const Block block = found->second;
  state.blocks.erase(found);
  if (block.kind == MemoryKind::device) {
    free_device_block(state, block);
  } else {
    munmap(address, static_cast<std::size_t>(block.bytes));
    if (block.kind == MemoryKind::managed) count_managed(block.card, -block.bytes);
  }
  trace("free", block.card, address, block.bytes);
  return Status::success;
}

}  // namespace

MemoryState& memory_state() {
  static MemoryState* const kState = [] {
    auto* state = new MemoryState;  // NOLINT(cppcoreguidelines-owning-memory)
    state->cards.resize(static_cast<std::size_t>(card_count()));
    return state;
  }();
  return *kState;
}

Status charge(MemoryState& state, int card, std::int64_t bytes) {
  if (!take_from_card(card, bytes)) {
    count_out_of_memory(card, bytes, session().card.memory_bytes - used_of_card(card));
    return Status::out_of_memory;
  }
  count_used(card, used_by_process(card), state.cards[static_cast<std::size_t>(card)].outside_bytes, bytes > 0);
  return Status::success;
}

Status open_card(MemoryState& state, int card) {
  if (card < 0 || card >= card_count()) return Status::invalid_device;
  CardMemory& memory = state.cards[static_cast<std::size_t>(card)];
  if (memory.is_open) return Status::success;
  memory.is_open = true;
  memory.outside_bytes += session().card.context_bytes;
  return charge(state, card, session().card.context_bytes);
}

const Block* block_at(const MemoryState& state, std::uintptr_t address) {
  auto next = state.blocks.upper_bound(address);
  if (next == state.blocks.begin()) return nullptr;
  const Block& block = (--next)->second;
  return address - block.base < static_cast<std::uintptr_t>(block.bytes) ? &block : nullptr;
}

Status open_card(int card) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  return open_card(state, card);
}

void close_card(int card) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  for (auto it = state.blocks.begin(); it != state.blocks.end();) {
    const Block block = it->second;
    const bool goes = block.kind == MemoryKind::device && block.card == card;
    it = goes ? state.blocks.erase(it) : std::next(it);
    if (goes) free_device_block(state, block);
  }
}

Status allocate_device(int card, std::int64_t bytes, void** address) {
  *address = nullptr;
  if (bytes < 0) return Status::invalid_value;
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  if (const Status status = open_card(state, card); status != Status::success) return status;
  if (bytes == 0) return Status::success;
  std::uintptr_t place = 0;
  Status status = Status::success;
  if (bytes < kSharedBelow) {
    status = allocate_shared(state, card, bytes, &place);
  } else {
    std::int64_t first = 0;
    const std::int64_t pages =
        bytes > session().card.memory_bytes ? session().card.memory_bytes / kPageBytes + 1 : pages_for(bytes);
    status = take_pages(state, card, pages, &first);
    place = page_address(card_memory(state, card), first);
  }
  if (status == Status::success) {
    state.blocks[place] = {MemoryKind::device, card, place, bytes};
    *address = reinterpret_cast<void*>(place);  // NOLINT(performance-no-int-to-ptr)
  }
  trace("malloc", card, *address, bytes, static_cast<int>(status));
  return status;
}

Status free_device(void* address) {
  return free_block(address, [](MemoryKind kind) { return kind == MemoryKind::device || kind == MemoryKind::managed; });
}

MemoryInfo memory_info(int card) {
  open_card(card);
  const std::int64_t total = session().card.memory_bytes;
  return {total - used_of_card(card), total};
}

Status allocate_host(MemoryKind kind, int card, std::int64_t bytes, void** address) {
  *address = nullptr;
  if (bytes < 0) return Status::invalid_value;
  if (bytes == 0) return Status::success;
  void* made = map_addresses(bytes, PROT_READ | PROT_WRITE);
  if (made == nullptr) return Status::out_of_memory;
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const auto base = reinterpret_cast<std::uintptr_t>(made);
  state.blocks[base] = {kind, card, base, bytes};
  *address = made;
  if (kind == MemoryKind::managed) count_managed(card, bytes);
  trace(kind == MemoryKind::managed ? "malloc_managed" : "malloc_host", card, made, bytes);
  return Status::success;
}

Status free_host(void* address) {
  return free_block(address, [](MemoryKind kind) { return kind == MemoryKind::pinned; });
}

Status register_host(void* address, std::int64_t bytes) {
  if (address == nullptr || bytes <= 0) return Status::invalid_value;
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const auto base = reinterpret_cast<std::uintptr_t>(address);
  if (block_at(state, base) != nullptr) return Status::host_memory_already_registered;
  state.blocks[base] = {MemoryKind::registered, 0, base, bytes};
  return Status::success;
}

Status unregister_host(void* address) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const auto found = state.blocks.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == state.blocks.end() || found->second.kind != MemoryKind::registered) {
    return Status::host_memory_not_registered;
  }
  state.blocks.erase(found);
  return Status::success;
}

Status charge_card(int card, std::int64_t bytes) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  if (const Status status = open_card(state, card); status != Status::success) return status;
  state.cards[static_cast<std::size_t>(card)].outside_bytes += bytes;
  const Status status = charge(state, card, bytes);
  if (status != Status::success) state.cards[static_cast<std::size_t>(card)].outside_bytes -= bytes;
  return status;
}

std::optional<Block> find_block(const void* address) {
  MemoryState& state = memory_state();
  const std::lock_guard lock(state.mutex);
  const Block* block = block_at(state, reinterpret_cast<std::uintptr_t>(address));
  return block == nullptr ? std::nullopt : std::optional(*block);
}

}  // namespace vramfit::phantom
