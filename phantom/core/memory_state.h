// What memory.cpp and virtual_memory.cpp share: the blocks of this process by address.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/address_space.h"
#include "phantom/core/memory.h"

namespace vramfit::phantom {

/// One card's addresses. Blocks of less than 1 MiB share pages.
struct CardMemory {
  struct SharedPage {
    std::int64_t page = 0, blocks = 0;
    AddressSpace slots{AddressOrder::ascending, 0, 0};
  };
  std::uintptr_t base = 0;
  std::unique_ptr<AddressSpace> space;
  std::map<std::int64_t, SharedPage> shared;  // by page number
  bool is_open = false;
  std::int64_t outside_bytes = 0;  // context, communicators
};

struct Pages {
  int card = 0;
  std::int64_t bytes = 0;
  int mapped = 0;
  bool released = false;
};

struct Mapping {
  std::int64_t bytes = 0;
  std::uint64_t handle = 0;
};

struct MemoryState {
  std::mutex mutex;
  std::map<std::uintptr_t, Block> blocks;  // by first address
  std::vector<CardMemory> cards;
  std::unordered_map<std::uint64_t, Pages> pages;
  std::map<std::uintptr_t, Mapping> mappings;
  std::uint64_t next_handle = 1;
};

/// Never destroyed: programs free memory in their own destructors.
MemoryState& memory_state();

/// Under the state's lock: takes bytes from the card for this process, or gives them back; counts them, and a failure.
Status charge(MemoryState& state, int card, std::int64_t bytes);
/// Under the state's lock: the context is charged once.
Status open_card(MemoryState& state, int card);
/// Under the state's lock.
const Block* block_at(const MemoryState& state, std::uintptr_t address);

}  // namespace vramfit::phantom
