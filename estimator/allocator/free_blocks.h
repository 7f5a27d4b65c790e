// The free blocks of one pool and stream, ordered by size, then address: what best fit searches.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace vramfit {

/// A sorted set in chunks of neighbouring memory: a search is two binary searches, a change moves at most one chunk.
class FreeBlocks {
 public:
  struct Entry {
    std::int64_t size = 0, address = 0;
    int block = -1;
  };
  /// A place in the order; any change invalidates it. `chunk` == number of chunks: the end.
  struct Place {
    std::size_t chunk = 0, index = 0;
  };

  bool empty() const { return chunks_.empty() || chunks_.front()->count == 0; }
  const Entry& at(Place place) const { return chunks_[place.chunk]->entries[place.index]; }
  bool is_end(Place place) const { return place.chunk == chunks_.size(); }
  Place begin() const { return {empty() ? chunks_.size() : 0, 0}; }
  Place next(Place place) const;
  /// The place before; `place` must not be the first. The end has one when the set isn't empty.
  Place previous(Place place) const;
  /// The first entry of at least this size and address.
  Place lower_bound(std::int64_t size, std::int64_t address) const;
  void insert(const Entry& entry);
  void erase(Place place);
  void erase(std::int64_t size, std::int64_t address) { erase(lower_bound(size, address)); }

 private:
  static constexpr std::size_t kMost = 128;
  struct Chunk {
    std::size_t count = 0;
    std::array<Entry, kMost> entries;
  };
  void split(std::size_t chunk);

  std::vector<std::unique_ptr<Chunk>> chunks_;  // only a single one may be empty
};

}  // namespace vramfit
