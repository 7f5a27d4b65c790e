#include "phantom/core/memory_pools.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "phantom/core/memory.h"
#include "phantom/core/visible_cards.h"

namespace vramfit::phantom {

namespace {

// Attributes of pools: runtime and driver share the numbers.
constexpr int kReuseFirst = 1;
constexpr int kReuseLast = 3;
constexpr int kThreshold = 4;
constexpr int kReserved = 5;
constexpr int kMostReserved = 6;
constexpr int kUsed = 7;
constexpr int kMostUsed = 8;

struct State {
  std::mutex mutex;
  std::unordered_map<const MemoryPool*, std::unique_ptr<MemoryPool>> pools;
  std::map<int, MemoryPool*> defaults, current;                            // by card
  std::unordered_map<void*, std::pair<MemoryPool*, std::int64_t>> owners;  // of each block: its pool and bytes
};

// Never destroyed: programs free memory in their own destructors.
State& state() {
  static auto* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

MemoryPool* add(State& s, int card, bool is_default) {
  auto pool = std::make_unique<MemoryPool>();
  pool->card = card;
  pool->is_default = is_default;
  MemoryPool* const raw = pool.get();
  s.pools.emplace(raw, std::move(pool));
  return raw;
}

bool is_card(int card) { return card >= 0 && card < card_count(); }

MemoryPool* default_of(State& s, int card) {
  MemoryPool*& pool = s.defaults[card];
  if (pool == nullptr) pool = add(s, card, true);
  return pool;
}

}  // namespace

MemoryPool* default_pool(int card) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return is_card(card) ? default_of(s, card) : nullptr;
}

MemoryPool* current_pool(int card) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!is_card(card)) return nullptr;
  const auto chosen = s.current.find(card);
  return chosen == s.current.end() ? default_of(s, card) : chosen->second;
}

Status set_current_pool(int card, MemoryPool* pool) {
  if (!is_card(card)) return Status::invalid_device;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.pools.contains(pool)) return Status::invalid_value;
  s.current[card] = pool;
  return Status::success;
}

Status create_pool(int card, MemoryPool** pool) {
  if (!is_card(card)) return Status::invalid_device;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  *pool = add(s, card, false);
  return Status::success;
}

Status destroy_pool(MemoryPool* pool) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.pools.find(pool);
  if (found == s.pools.end() || pool->is_default) return Status::invalid_value;
  std::erase_if(s.current, [&](const auto& entry) { return entry.second == pool; });
  for (auto& [address, owner] : s.owners) {
    if (owner.first == pool) owner.first = nullptr;
  }
  s.pools.erase(found);
  return Status::success;
}

bool is_pool(const MemoryPool* pool) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.pools.contains(pool);
}

Status allocate_from_pool(MemoryPool* pool, std::int64_t bytes, void** address) {
  *address = nullptr;
  if (!is_pool(pool)) return Status::invalid_value;
  const Status status = allocate_device(pool->card, bytes, address);
  if (status != Status::success || *address == nullptr) return status;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.owners[*address] = {pool, bytes};
  pool->used_bytes += bytes;
  pool->most_used_bytes = std::max(pool->most_used_bytes, pool->used_bytes);
  return Status::success;
}

Status free_to_pool(void* address) {
  {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto owner = s.owners.find(address);
    if (owner != s.owners.end()) {
      if (owner->second.first != nullptr) owner->second.first->used_bytes -= owner->second.second;
      s.owners.erase(owner);
    }
  }
  return free_device(address);
}

Status pool_attribute(const MemoryPool* pool, int attribute, void* value) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.pools.contains(pool) || value == nullptr) return Status::invalid_value;
  if (attribute >= kReuseFirst && attribute <= kReuseLast) {
    std::memcpy(value, &pool->reuse[attribute - kReuseFirst], sizeof(int));
    return Status::success;
  }
  std::uint64_t number = 0;
  if (attribute == kThreshold) {
    number = pool->release_threshold;
  } else if (attribute == kReserved || attribute == kUsed) {
    number = static_cast<std::uint64_t>(pool->used_bytes);
  } else if (attribute == kMostReserved || attribute == kMostUsed) {
    number = static_cast<std::uint64_t>(pool->most_used_bytes);
  } else {
    return Status::invalid_value;
  }
  std::memcpy(value, &number, sizeof number);
  return Status::success;
}

Status set_pool_attribute(MemoryPool* pool, int attribute, const void* value) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.pools.contains(pool) || value == nullptr) return Status::invalid_value;
  if (attribute >= kReuseFirst && attribute <= kReuseLast) {
    std::memcpy(&pool->reuse[attribute - kReuseFirst], value, sizeof(int));
  } else if (attribute == kThreshold) {
    std::memcpy(&pool->release_threshold, value, sizeof pool->release_threshold);
  } else if (attribute == kMostReserved || attribute == kMostUsed) {
    pool->most_used_bytes = pool->used_bytes;  // only a reset is allowed
  } else {
    return Status::invalid_value;
  }
  return Status::success;
}

}  // namespace vramfit::phantom
