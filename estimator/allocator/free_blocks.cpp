#include "estimator/allocator/free_blocks.h"

#include <algorithm>

namespace vramfit {

namespace {

constexpr std::size_t kMostInChunk = 256;  // 6 KiB: an insertion moves half of it

}  // namespace

/// Of several: the first whose last entry isn't before this one, or else the last.
std::uint32_t FreeBlocks::chunk_of(std::int64_t size, std::int64_t address) const {
  const auto behind_last = chunks_.end() - 1;
  const auto chunk = std::partition_point(
      chunks_.begin(), behind_last, [&](const Chunk& entries) { return is_before(entries.back(), size, address); });
  return static_cast<std::uint32_t>(chunk - chunks_.begin());
}

FreeBlocks::Place FreeBlocks::previous(Place place) const {
  if (place.is_end()) place = {static_cast<std::uint32_t>(chunks_.size()), 0};
  if (place.index > 0) return {place.chunk, place.index - 1};
  const std::uint32_t before = place.chunk - 1;
  return {before, static_cast<std::uint32_t>(chunks_[before].size()) - 1};
}

void FreeBlocks::insert(const Entry& entry) {
  const Place place = place_of(entry.size, entry.address);
  Chunk& chunk = chunks_[place.chunk];
  chunk.insert(chunk.begin() + place.index, entry);
  if (chunk.size() <= kMostInChunk) return;
  const auto middle = chunk.begin() + kMostInChunk / 2;
  Chunk rest(middle, chunk.end());
  chunk.erase(middle, chunk.end());
  chunks_.insert(chunks_.begin() + place.chunk + 1, std::move(rest));
}

void FreeBlocks::erase(Place place) {
  Chunk& chunk = chunks_[place.chunk];
  chunk.erase(chunk.begin() + place.index);
  if (chunk.empty() && chunks_.size() > 1) chunks_.erase(chunks_.begin() + place.chunk);
}

}  // namespace vramfit
