// The free blocks of one pool and stream, ordered by size, then address: what best fit searches.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace vramfit {

/// A sorted set. Sizes fall into classes, 16 between one power of two and the next. A bitmap says which classes are not
/// empty, so a search looks at the bitmap and at the few blocks of one class. A class with many blocks (a model's
/// layers free thousands of one size) is kept in short chunks, so that an insertion moves few of them.
class FreeBlocks {
  static constexpr int kParts = 4;       // log2 of the classes of an octave
  static constexpr int kMostUnits = 42;  // log2 of blocks' sizes in units; what is larger shares a class
  static constexpr std::uint32_t kClasses = ((kMostUnits - kParts) << kParts) + (1 << kParts);
  static constexpr std::size_t kWords = (kClasses + 63) / 64;

 public:
  struct Entry {
    std::int64_t size = 0, address = 0;
    int block = -1;
  };
  /// A place in the order; any change invalidates it.
  struct Place {
    std::uint32_t size_class = 0, chunk = 0, index = 0;
    bool is_end() const { return size_class == kClasses; }
    bool operator==(const Place&) const = default;
  };

  const Entry& at(Place place) const { return classes_[place.size_class][place.chunk][place.index]; }
  Place begin() const { return {filled_from(0), 0, 0}; }
  Place next(Place place) const;
  /// The place before `place`, which must not be the first. If the set isn't empty, the end has a place before it.
  Place previous(Place place) const;
  /// The first entry of at least this size and, among those of this size, this address.
  Place lower_bound(std::int64_t size, std::int64_t address) const;
  void insert(const Entry& entry);
  void erase(Place place);
  void erase(std::int64_t size, std::int64_t address) { erase(lower_bound(size, address)); }

 private:
  using Chunk = std::vector<Entry>;

  static std::uint32_t class_of(std::int64_t size);
  bool is_filled(std::uint32_t size_class) const { return ((filled_[size_class / 64] >> (size_class % 64)) & 1U) != 0; }
  /// The first class from `first` on that is not empty, or kClasses.
  std::uint32_t filled_from(std::uint32_t first) const;
  /// Where an entry is, or would be inserted, in its class: perhaps behind the last entry of the last chunk.
  Place place_of(std::int64_t size, std::int64_t address) const;

  std::array<std::vector<Chunk>, kClasses> classes_;  // sorted; no chunk is empty, unless it is the class's only one
  std::array<std::uint64_t, kWords> filled_{};        // a bit for each class
};

}  // namespace vramfit
