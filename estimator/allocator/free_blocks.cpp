#include "estimator/allocator/free_blocks.h"

#include <algorithm>
#include <utility>

namespace vramfit {

namespace {

bool is_before(const FreeBlocks::Entry& entry, std::int64_t size, std::int64_t address) {
  return entry.size < size || (entry.size == size && entry.address < address);
}

/// How many of `count` sorted entries come before; without branches that a processor would guess wrong.
std::size_t count_before(const FreeBlocks::Entry* entries, std::size_t count, std::int64_t size, std::int64_t address) {
  const FreeBlocks::Entry* base = entries;
  while (count > 1) {
    const std::size_t half = count / 2;
    base += is_before(base[half - 1], size, address) ? half : 0;
    count -= half;
  }
  return static_cast<std::size_t>(base - entries) + (count == 1 && is_before(*base, size, address) ? 1 : 0);
}

}  // namespace

FreeBlocks::Place FreeBlocks::next(Place place) const {
  if (++place.index < chunks_[place.chunk]->count) return place;
  return {place.chunk + 1, 0};
}

FreeBlocks::Place FreeBlocks::previous(Place place) const {
  if (place.index > 0) return {place.chunk, place.index - 1};
  return {place.chunk - 1, chunks_[place.chunk - 1]->count - 1};
}

FreeBlocks::Place FreeBlocks::lower_bound(std::int64_t size, std::int64_t address) const {
  std::size_t chunk = 0;
  if (chunks_.size() > 1) {
    const auto found = std::ranges::partition_point(
        chunks_, [&](const std::unique_ptr<Chunk>& c) { return is_before(c->entries[c->count - 1], size, address); });
    chunk = static_cast<std::size_t>(found - chunks_.begin());
  }
  if (chunk == chunks_.size()) return {chunk, 0};
  const Chunk& c = *chunks_[chunk];
  const std::size_t index = count_before(c.entries.data(), c.count, size, address);
  return index < c.count ? Place{chunk, index} : Place{chunk + 1, 0};
}

void FreeBlocks::insert(const Entry& entry) {
  if (chunks_.empty()) chunks_.push_back(std::make_unique<Chunk>());
  Place place = lower_bound(entry.size, entry.address);
  // An entry at the start of a chunk, or beyond all, may as well end the chunk before.
  if (place.index == 0 && place.chunk > 0) place = {place.chunk - 1, chunks_[place.chunk - 1]->count};
  if (chunks_[place.chunk]->count == kMost) {
    split(place.chunk);
    const std::size_t kept = chunks_[place.chunk]->count;
    if (place.index > kept) place = {place.chunk + 1, place.index - kept};
  }
  Chunk& chunk = *chunks_[place.chunk];
  const auto at = chunk.entries.begin() + static_cast<std::ptrdiff_t>(place.index);
  const auto end = chunk.entries.begin() + static_cast<std::ptrdiff_t>(chunk.count);
  std::move_backward(at, end, end + 1);
  *at = entry;
  ++chunk.count;
}

void FreeBlocks::erase(Place place) {
  Chunk& chunk = *chunks_[place.chunk];
  const auto at = chunk.entries.begin() + static_cast<std::ptrdiff_t>(place.index);
  const auto end = chunk.entries.begin() + static_cast<std::ptrdiff_t>(chunk.count);
  std::move(at + 1, end, at);
  if (--chunk.count == 0 && chunks_.size() > 1)
    chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(place.chunk));
}

void FreeBlocks::split(std::size_t chunk) {
  auto upper = std::make_unique<Chunk>();
  Chunk& lower = *chunks_[chunk];
  upper->count = lower.count / 2;
  lower.count -= upper->count;
  const auto from = lower.entries.begin() + static_cast<std::ptrdiff_t>(lower.count);
  std::copy_n(from, upper->count, upper->entries.begin());
  chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk) + 1, std::move(upper));
}

}  // namespace vramfit
