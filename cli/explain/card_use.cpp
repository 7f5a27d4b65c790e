#include "cli/explain/card_use.h"

#include <algorithm>

namespace vramfit {
namespace {

constexpr Bytes kZero{0};

Bytes at_least_zero(Bytes bytes) { return std::max(bytes, kZero); }

/// The process that ran out, among those that the message lists: the one that it calls so, or else the smallest that
/// can hold what PyTorch reserved.
const ProcessUse* own_process(const MemoryMessage& message, Bytes reserved, bool& by_size) {
  const ProcessUse* own = nullptr;
  for (const ProcessUse& each : message.processes) {
    if (each.process == 0) return &each;
    if (each.bytes >= reserved && (own == nullptr || each.bytes < own->bytes)) own = &each;
  }
  by_size = own != nullptr;
  return own;
}

void add_processes(CardUse& use, const MemoryMessage& message, Bytes reserved) {
  const ProcessUse* const own = own_process(message, reserved, use.own_by_size);
  Bytes others, largest;
  for (const ProcessUse& each : message.processes) {
    if (&each == own) continue;
    others += each.bytes;
    if (each.bytes <= largest) continue;
    largest = each.bytes;
    use.largest_other = each.process;
  }
  if (!message.processes.empty()) use.others = others;
  if (own != nullptr) use.own_outside = at_least_zero(own->bytes - reserved);
}

}  // namespace

std::optional<Bytes> CardUse::available() const {
  if (!limit) return free;
  const Bytes reserved = allocated.value_or(kZero) + unallocated.value_or(kZero);
  const Bytes below_limit = at_least_zero(*limit - reserved);
  return free ? std::min(*free, below_limit) : below_limit;
}

std::optional<Bytes> CardUse::lacking() const {
  const std::optional<Bytes> has = available();
  if (!asked || !has) return std::nullopt;
  return at_least_zero(*asked - *has);
}

CardUse use_of(const MemoryMessage& message) {
  CardUse use;
  use.asked = message.asked;
  use.total = message.total;
  use.free = message.free;
  use.allocated = message.allocated;
  use.private_pools = message.private_pools;
  use.is_of_old_torch = message.is_of_old_torch;
  use.expandable = message.expandable;
  if (message.allowed && (!message.total || *message.allowed < *message.total)) use.limit = message.allowed;
  if (message.allocated && message.reserved) use.unallocated = at_least_zero(*message.reserved - *message.allocated);
  const std::optional<Bytes> reserved = message.reserved ? message.reserved : message.allocated;
  if (!reserved) return use;
  add_processes(use, message, *reserved);
  if (use.total && use.free && message.by == RefusedBy::caching_allocator) {
    const Bytes known = *reserved + *use.free + use.own_outside.value_or(kZero) + use.others.value_or(kZero);
    use.rest = at_least_zero(*use.total - known);
  }
  return use;
}

CardUse use_of(const SnapshotFacts& facts) {
  CardUse use;
  use.allocated = facts.allocated;
  use.unallocated = facts.reserved - facts.allocated;
  use.expandable = facts.expandable;
  if (facts.private_pools > kZero) use.private_pools = facts.private_pools;
  if (!facts.oom) return use;
  use.asked = facts.oom->asked;
  use.free = facts.oom->free;
  return use;
}

}  // namespace vramfit
