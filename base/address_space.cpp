#include "base/address_space.h"

#include <algorithm>
#include <iterator>

#include "base/numbers/mix_bits.h"

namespace vramfit {

namespace {
constexpr int kDraws = 64;  // before the lowest gap is taken instead: reached only when the range is nearly full

// What an H200 showed with driver 580.
constexpr std::int64_t kRangePages = (std::int64_t{32} << 20) / kDriverPageBytes;
// Of a context's own range, 428 MiB are free for blocks; two handles of cuBLAS, that of the forward pass and that of
// the backward pass, take two blocks of 32 MiB each.
constexpr std::int64_t kContextPages = (std::int64_t{428 - 4 * 32} << 20) / kDriverPageBytes;
}  // namespace

AddressSpace::AddressSpace(AddressOrder order, std::uint64_t seed, std::int64_t pages)
    : order_(order), state_(seed), pages_(pages), reserved_from_(pages), gaps_{{0, pages}} {
  if (order_ != AddressOrder::driver) return;
  const std::int64_t free = std::min(pages, kContextPages);
  gaps_ = {{pages - free, free}};
  reserved_from_ = pages - free;
}

std::uint64_t AddressSpace::draw() { return mix_bits(state_ += 0x9E3779B97F4A7C15ULL); }

void AddressSpace::carve(std::map<std::int64_t, std::int64_t>::iterator gap, std::int64_t first, std::int64_t count) {
  const std::int64_t start = gap->first, end = start + gap->second;
  if (end > first + count) gaps_.emplace_hint(std::next(gap), first + count, end - first - count);
  if (first > start) {
    gap->second = first - start;
  } else {
    gaps_.erase(gap);
  }
}

std::optional<std::int64_t> AddressSpace::take_shuffled(std::int64_t count) {
  if (count > pages_) return std::nullopt;
  for (int n = 0; n < kDraws; ++n) {
    const auto first = static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(pages_ - count + 1));
    auto gap = gaps_.upper_bound(first);
    if (gap == gaps_.begin()) continue;
    --gap;
    if (gap->first + gap->second < first + count) continue;
    carve(gap, first, count);
    return first;
  }
  return std::nullopt;
}

std::optional<std::int64_t> AddressSpace::take_highest(std::int64_t count) {
  for (auto gap = gaps_.rbegin(); gap != gaps_.rend(); ++gap) {
    if (gap->second < count) continue;
    const std::int64_t first = gap->first + gap->second - count;
    carve(std::prev(gap.base()), first, count);
    return first;
  }
  return std::nullopt;
}

std::optional<std::int64_t> AddressSpace::take_lowest(std::int64_t count) {
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < count) continue;
    const std::int64_t first = gap->first;
    carve(gap, first, count);
    return first;
  }
  return std::nullopt;
}

/// Room for a block below all ranges; false if there is none.
bool AddressSpace::reserve_range(std::int64_t count) {
  if (reserved_from_ < count) return false;
  const std::int64_t size = std::min(reserved_from_, (count + kRangePages - 1) / kRangePages * kRangePages);
  reserved_from_ -= size;
  give_back(reserved_from_, size);
  return true;
}

std::optional<std::int64_t> AddressSpace::take(std::int64_t count) {
  if (order_ == AddressOrder::shuffled) {
    if (const auto drawn = take_shuffled(count)) return drawn;
  }
  if (order_ == AddressOrder::descending) return take_highest(count);
  const auto first = take_lowest(count);
  if (first || order_ != AddressOrder::driver || !reserve_range(count)) return first;
  return take_lowest(count);
}

void AddressSpace::give_back(std::int64_t first, std::int64_t count) {
  auto next = gaps_.lower_bound(first);
  if (next != gaps_.end() && next->first == first + count) {
    count += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == first) {
      before->second += count;
      return;
    }
  }
  gaps_.emplace(first, count);
}

}  // namespace vramfit
