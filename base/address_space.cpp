#include "base/address_space.h"

#include <iterator>

#include "base/mix_bits.h"

namespace vramfit {

namespace {
constexpr int kDraws = 64;  // before the lowest gap is taken instead: reached only when the range is nearly full
}

AddressSpace::AddressSpace(AddressOrder order, std::uint64_t seed, std::int64_t pages)
    : order_(order), state_(seed), pages_(pages), gaps_{{0, pages}} {}

std::uint64_t AddressSpace::draw() { return mix_bits(state_ += 0x9E3779B97F4A7C15ULL); }

void AddressSpace::carve(std::map<std::int64_t, std::int64_t>::iterator gap, std::int64_t first, std::int64_t count) {
  const std::int64_t start = gap->first, end = start + gap->second;
  gaps_.erase(gap);
  if (first > start) gaps_.emplace(start, first - start);
  if (end > first + count) gaps_.emplace(first + count, end - first - count);
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

std::optional<std::int64_t> AddressSpace::take(std::int64_t count) {
  if (order_ == AddressOrder::shuffled) {
    if (const auto drawn = take_shuffled(count)) return drawn;
  }
  if (order_ == AddressOrder::descending) {
    for (auto gap = gaps_.rbegin(); gap != gaps_.rend(); ++gap) {
      if (gap->second < count) continue;
      const std::int64_t first = gap->first + gap->second - count;
      carve(std::prev(gap.base()), first, count);
      return first;
    }
    return std::nullopt;
  }
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < count) continue;
    const std::int64_t first = gap->first;
    carve(gap, first, count);
    return first;
  }
  return std::nullopt;
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
