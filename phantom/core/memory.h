// Device, pinned and managed memory of this process: addresses, what backs them, and what is left on the card.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "phantom/core/status.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

enum class MemoryKind { device, virtual_range, managed, pinned, registered };

/// The block that an address lies in.
struct Block {
  MemoryKind kind{};
  int card = 0;
  std::uintptr_t base = 0;
  std::int64_t bytes = 0;
};

struct MemoryInfo {
  std::int64_t free_bytes = 0, total_bytes = 0;
};

/// The card's granularity: blocks of 1 MiB and more take whole pages of it, smaller ones share one.
inline constexpr std::int64_t kPageBytes = 2 << 20;

/// Bytes 0: success and a null address, as the runtime does it. Fails with out_of_memory when the card is full.
PHANTOM_CORE Status allocate_device(int card, std::int64_t bytes, void** address);
PHANTOM_CORE Status free_device(void* address);  // null: success
PHANTOM_CORE MemoryInfo memory_info(int card);

/// Host memory that exists: pages are made by the system when touched.
PHANTOM_CORE Status allocate_host(MemoryKind kind, int card, std::int64_t bytes, void** address);
PHANTOM_CORE Status free_host(void* address);
PHANTOM_CORE Status register_host(void* address, std::int64_t bytes);
PHANTOM_CORE Status unregister_host(void* address);

/// Bytes of the card that lie outside anybody's blocks: contexts, communicators. Negative gives them back.
PHANTOM_CORE Status charge_card(int card, std::int64_t bytes);

/// The block that holds `address`, of any kind; none for plain host memory.
PHANTOM_CORE std::optional<Block> find_block(const void* address);

// Virtual memory: addresses and pages apart, as expandable segments use them.
PHANTOM_CORE Status reserve_range(std::int64_t bytes, std::int64_t alignment, void** address);
PHANTOM_CORE Status free_range(void* address, std::int64_t bytes);
/// `bytes` must be a multiple of kPageBytes. The handle is never 0.
PHANTOM_CORE Status create_pages(int card, std::int64_t bytes, std::uint64_t* handle);
/// Gives up the handle; the pages stay as long as they are mapped.
PHANTOM_CORE Status release_pages(std::uint64_t handle);
PHANTOM_CORE Status map_pages(void* address, std::int64_t bytes, std::uint64_t handle);
PHANTOM_CORE Status unmap_pages(void* address, std::int64_t bytes);

/// The card is used from now on: its context is charged once a process.
PHANTOM_CORE Status open_card(int card);
PHANTOM_CORE void close_card(int card);  // a device reset: frees all its blocks

}  // namespace vramfit::phantom
