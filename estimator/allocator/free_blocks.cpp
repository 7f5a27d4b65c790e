#include "estimator/allocator/free_blocks.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace vramfit {

namespace {

constexpr int kUnit = 9;                  // log2 of 512: every block is a multiple
constexpr std::size_t kFewEntries = 16;   // up to this many, linear search
constexpr std::size_t kMostInChunk = 64;  // 1.5 KiB: an insertion moves half of it

bool is_before(const FreeBlocks::Entry& entry, std::int64_t size, std::int64_t address) {
  return entry.size < size || (entry.size == size && entry.address < address);
}

std::size_t count_before(const std::vector<FreeBlocks::Entry>& entries, std::int64_t size, std::int64_t address) {
  const auto is_before = [&](const FreeBlocks::Entry& entry) { return vramfit::is_before(entry, size, address); };
  if (entries.size() > kFewEntries) {
    return static_cast<std::size_t>(std::ranges::partition_point(entries, is_before) - entries.begin());
  }
  std::size_t count = 0;
  while (count < entries.size() && is_before(entries[count])) ++count;
  return count;
}

}  // namespace

/// The exponent and the first bits of the mantissa, like a floating-point number.
std::uint32_t FreeBlocks::class_of(std::int64_t size) {
  const std::uint64_t units = std::min(static_cast<std::uint64_t>(size) >> kUnit, (std::uint64_t{1} << kMostUnits) - 1);
  if (units < (1U << kParts)) return static_cast<std::uint32_t>(units);
  const int shift = static_cast<int>(std::bit_width(units)) - 1 - kParts;
  return (static_cast<std::uint32_t>(shift) << kParts) +
         static_cast<std::uint32_t>(units >> static_cast<unsigned>(shift));
}

std::uint32_t FreeBlocks::filled_from(std::uint32_t first) const {
  std::uint32_t word = first / 64;
  if (word >= kWords) return kClasses;
  std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << (first % 64));
  while (bits == 0) {
    if (++word == kWords) return kClasses;
    bits = filled_[word];
  }
  return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
}

FreeBlocks::Place FreeBlocks::next(Place place) const {
  const std::vector<Chunk>& chunks = classes_[place.size_class];
  if (place.index + 1 < chunks[place.chunk].size()) return {place.size_class, place.chunk, place.index + 1};
  if (place.chunk + 1 < chunks.size()) return {place.size_class, place.chunk + 1, 0};
  return {filled_from(place.size_class + 1), 0, 0};
}

FreeBlocks::Place FreeBlocks::previous(Place place) const {
  if (place.index > 0) return {place.size_class, place.chunk, place.index - 1};
  if (place.chunk == 0) {
    --place.size_class;
    while (!is_filled(place.size_class)) --place.size_class;
    place.chunk = static_cast<std::uint32_t>(classes_[place.size_class].size());
  }
  --place.chunk;
  place.index = static_cast<std::uint32_t>(classes_[place.size_class][place.chunk].size()) - 1;
  return place;
}

FreeBlocks::Place FreeBlocks::place_of(std::int64_t size, std::int64_t address) const {
  Place place{class_of(size), 0, 0};
  const std::vector<Chunk>& chunks = classes_[place.size_class];
  if (chunks.empty()) return place;
  if (chunks.size() > 1) {
    const auto behind_last = chunks.end() - 1;
    const auto chunk = std::partition_point(
        chunks.begin(), behind_last, [&](const Chunk& entries) { return is_before(entries.back(), size, address); });
    place.chunk = static_cast<std::uint32_t>(chunk - chunks.begin());
  }
  place.index = static_cast<std::uint32_t>(count_before(chunks[place.chunk], size, address));
  return place;
}

FreeBlocks::Place FreeBlocks::lower_bound(std::int64_t size, std::int64_t address) const {
  const Place place = place_of(size, address);
  const std::vector<Chunk>& chunks = classes_[place.size_class];
  if (!chunks.empty() && place.index < chunks[place.chunk].size()) return place;
  return {filled_from(place.size_class + 1), 0, 0};
}

void FreeBlocks::insert(const Entry& entry) {
  const Place place = place_of(entry.size, entry.address);
  std::vector<Chunk>& chunks = classes_[place.size_class];
  if (chunks.empty()) chunks.emplace_back();
  Chunk& chunk = chunks[place.chunk];
  chunk.insert(chunk.begin() + place.index, entry);
  filled_[place.size_class / 64] |= std::uint64_t{1} << (place.size_class % 64);
  if (chunk.size() <= kMostInChunk) return;
  const auto middle = chunk.begin() + kMostInChunk / 2;
  Chunk rest(middle, chunk.end());
  chunk.erase(middle, chunk.end());
  chunks.insert(chunks.begin() + place.chunk + 1, std::move(rest));
}

void FreeBlocks::erase(Place place) {
  std::vector<Chunk>& chunks = classes_[place.size_class];
  Chunk& chunk = chunks[place.chunk];
  chunk.erase(chunk.begin() + place.index);
  if (!chunk.empty()) return;
  if (chunks.size() > 1) {
    chunks.erase(chunks.begin() + place.chunk);
  } else {
    filled_[place.size_class / 64] &= ~(std::uint64_t{1} << (place.size_class % 64));
  }
}

}  // namespace vramfit
