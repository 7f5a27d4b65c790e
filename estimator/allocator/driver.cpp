#include "estimator/allocator/driver.h"

#include <algorithm>
#include <iterator>

#include "model_specs/error.h"

namespace vramfit {

namespace {

// cudaMalloc of more than 1 MiB and cuMemCreate hand out whole pages of 2 MiB; the allocator asks for nothing smaller.
constexpr std::int64_t kGranularity = std::int64_t{2} << 20;
constexpr std::int64_t kMiddle = std::int64_t{1} << 62;
// Shuffled addresses are drawn from places this far apart, so that any segment fits.
constexpr int kPlaceBits = 41, kPlaces = 1 << 21;

/// splitmix64, the same on every machine.
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

}  // namespace

CardMemory::CardMemory(Bytes total, std::optional<Bytes> free_bytes, AddressOrder order)
    : total_(total.n), order_(order), end_(kMiddle) {
  if (free_bytes) left_ = free_bytes->n;
}

bool CardMemory::take(std::int64_t bytes) {
  if (!left_) return true;
  const std::int64_t rounded = round_up(bytes, kGranularity);
  if (rounded > *left_) return false;
  *left_ -= rounded;
  return true;
}

std::optional<std::int64_t> CardMemory::allocate(std::int64_t bytes) {
  if (!take(bytes)) return std::nullopt;
  return address_for(bytes);
}

void CardMemory::free(std::int64_t address, std::int64_t bytes) {
  if (left_) *left_ += round_up(bytes, kGranularity);
  give_back(address, bytes);
}

std::int64_t CardMemory::reserve(std::int64_t bytes) { return address_for(bytes); }

void CardMemory::unreserve(std::int64_t address, std::int64_t bytes) { give_back(address, bytes); }

bool CardMemory::create_pages(std::int64_t count, std::int64_t page) { return take(checked_mul(count, page)); }

void CardMemory::release_pages(std::int64_t count, std::int64_t page) {
  if (left_) *left_ += checked_mul(count, page);
}

/// The lowest gap that fits (descending: the highest, at its upper end), else beyond everything handed out so far.
std::int64_t CardMemory::address_for(std::int64_t bytes) {
  if (order_.kind == AddressOrder::Kind::shuffled) return shuffled_address();
  const bool descends = order_.kind == AddressOrder::Kind::descending;
  const std::int64_t size = round_up(bytes, kGranularity);
  const auto fits = [&](const auto& gap) { return gap.second >= size; };
  auto gap = gaps_.end();
  if (descends) {
    const auto highest = std::find_if(gaps_.rbegin(), gaps_.rend(), fits);
    if (highest != gaps_.rend()) gap = std::prev(highest.base());
  } else {
    gap = std::find_if(gaps_.begin(), gaps_.end(), fits);
  }
  if (gap == gaps_.end()) {
    if (descends) return end_ -= size;
    end_ += size;
    return end_ - size;
  }
  const auto [start, length] = *gap;
  gaps_.erase(gap);
  if (descends) {
    if (length > size) gaps_.emplace(start, length - size);
    return start + length - size;
  }
  if (length > size) gaps_.emplace(start + size, length - size);
  return start;
}

std::int64_t CardMemory::shuffled_address() {
  while (true) {
    const std::uint64_t draw = scramble(scramble(order_.seed) + draws_++);
    const auto address = static_cast<std::int64_t>(1 + draw % (kPlaces - 1)) << kPlaceBits;
    if (drawn_.insert(address).second) return address;
  }
}

void CardMemory::give_back(std::int64_t address, std::int64_t bytes) {
  if (order_.kind == AddressOrder::Kind::shuffled) {
    drawn_.erase(address);
    return;
  }
  std::int64_t size = round_up(bytes, kGranularity);
  const auto next = gaps_.lower_bound(address);
  if (next != gaps_.end() && next->first == address + size) {
    size += next->second;
    gaps_.erase(next);
  }
  const auto after = gaps_.lower_bound(address);
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      before->second += size;
      return;
    }
  }
  gaps_.emplace(address, size);
}

std::int64_t ListedCard::address_for(std::int64_t /*bytes*/) {
  if (addresses_.empty()) throw FaultError("the replay asks the card for one block more than the run did");
  const std::int64_t address = addresses_.front();
  addresses_.pop_front();
  return address;
}

void ListedCard::give_back(std::int64_t /*address*/, std::int64_t /*bytes*/) {}

}  // namespace vramfit
