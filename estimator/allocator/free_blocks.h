// The free blocks of one pool and stream, ordered by size, then address: what best fit searches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vramfit {

/// A sorted set, kept in short sorted chunks: nearly always one. A model's layers can free thousands of one size, and
/// an insertion then moves the few of one chunk.
class FreeBlocks {
  static constexpr std::uint32_t kEnd = ~std::uint32_t{0};

 public:
  struct Entry {
    std::int64_t size = 0, address = 0;
    int block = -1;
  };
  /// A place in the order; any change invalidates it.
  struct Place {
    std::uint32_t chunk = 0, index = 0;
    bool is_end() const { return chunk == kEnd; }
    bool operator==(const Place&) const = default;
  };
  static constexpr Place kNowhere{kEnd, 0};

  const Entry& at(Place place) const { return chunks_[place.chunk][place.index]; }
  Place begin() const { return chunks_.front().empty() ? Place{kEnd, 0} : Place{}; }
  Place next(Place place) const {
    if (++place.index < chunks_[place.chunk].size()) return place;
    return place.chunk + 1 < chunks_.size() ? Place{place.chunk + 1, 0} : Place{kEnd, 0};
  }
  /// The place before `place`, which must not be the first. If the set isn't empty, the end has a place before it.
  Place previous(Place place) const;
  /// The first entry of at least this size and, among those of this size, this address.
  Place lower_bound(std::int64_t size, std::int64_t address) const {
    const Place place = place_of(size, address);
    return place.index < chunks_[place.chunk].size() ? place : Place{kEnd, 0};
  }
  void insert(const Entry& entry);
  void erase(Place place);
  void erase(std::int64_t size, std::int64_t address) { erase(lower_bound(size, address)); }
  /// Erases what is at `place` and inserts `entry`, which may belong elsewhere: a block that is split, or that grows.
  /// It rarely passes more than a few others (two in the mean, over the steps of a 126-layer model).
  void replace(Place place, const Entry& entry) {
    if (chunks_.size() > 1) {
      erase(place);
      return insert(entry);
    }
    Entry* const entries = chunks_.front().data();
    const auto end = static_cast<std::uint32_t>(chunks_.front().size());
    std::uint32_t at = place.index;
    for (; at > 0 && !is_before(entries[at - 1], entry.size, entry.address); --at) entries[at] = entries[at - 1];
    for (; at + 1 < end && is_before(entries[at + 1], entry.size, entry.address); ++at) entries[at] = entries[at + 1];
    entries[at] = entry;
  }

 private:
  using Chunk = std::vector<Entry>;

  static bool is_before(const Entry& entry, std::int64_t size, std::int64_t address) {
    return entry.size < size || (entry.size == size && entry.address < address);
  }
  /// How many of these entries come before this one.
  static std::uint32_t count_before(const Entry* begin, std::size_t entries, std::int64_t size, std::int64_t address) {
    const Entry* first = begin;
    for (std::size_t left = entries; left > 0;) {
      const std::size_t half = left / 2;
      const bool is_right = is_before(first[half], size, address);
      first = is_right ? first + half + 1 : first;
      left = is_right ? left - half - 1 : half;
    }
    return static_cast<std::uint32_t>(first - begin);
  }
  std::uint32_t chunk_of(std::int64_t size, std::int64_t address) const;
  /// Where an entry is, or would be inserted: perhaps behind the last entry of the last chunk.
  Place place_of(std::int64_t size, std::int64_t address) const {
    const std::uint32_t chunk = chunks_.size() == 1 ? 0 : chunk_of(size, address);
    return {chunk, count_before(chunks_[chunk].data(), chunks_[chunk].size(), size, address)};
  }

  std::vector<Chunk> chunks_ = std::vector<Chunk>(1);  // none is empty, unless it is the only one
};

}  // namespace vramfit
