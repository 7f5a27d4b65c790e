// The free blocks of one pool and stream, ordered by size, then address: what best fit searches.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace vramfit {

/// A sorted set, kept in groups of one size each: a model's layers free hundreds of blocks, of a dozen sizes, and the
/// next step frees blocks of the same sizes again. Groups that become empty therefore stay in their place, and where a
/// size was found last is where it is looked for first; looking changes that, so that only one thread may look at a
/// time.
class FreeBlocks {
  static constexpr std::uint32_t kEnd = ~std::uint32_t{0};

 public:
  struct Entry {
    std::int64_t size = 0, address = 0;
    int block = -1;
  };
  /// A place in the order; any change invalidates it.
  struct Place {
    std::uint32_t group = 0, index = 0;  // index: from the group's highest address down
    bool is_end() const { return group == kEnd; }
    bool operator==(const Place&) const = default;
  };
  static constexpr Place kNowhere{kEnd, 0};

  Entry at(Place place) const {
    const Group& group = groups_[place.group];
    const Spot& spot = lists_[group.list][place.index];
    return {.size = group.size, .address = spot.address, .block = spot.block};
  }
  Place begin() const { return first_from(0); }
  Place next(Place place) const {
    if (place.index > 0) return {place.group, place.index - 1};
    return first_from(place.group + 1);
  }
  /// The place before `place`, which must not be the first. If the set isn't empty, the end has a place before it.
  Place previous(Place place) const;
  /// The first entry of at least this size.
  Place lower_bound(std::int64_t size) const { return first_from(group_of(size)); }
  /// Where the block of this size and address is, which must be there.
  Place find(std::int64_t size, std::int64_t address) const {
    const std::uint32_t group = group_of(size);
    return {group, spots_above(lists_[groups_[group].list], address)};
  }
  void insert(const Entry& entry);
  void erase(Place place);
  void erase(std::int64_t size, std::int64_t address) { erase(find(size, address)); }
  /// Erases what is at `place` and inserts `entry`: a block that is split, or that grows.
  void replace(Place place, const Entry& entry);

 private:
  struct Spot {
    std::int64_t address = 0;
    int block = -1;
  };
  /// From the highest address to the lowest, so that the lowest is taken off the end.
  using Spots = std::vector<Spot>;
  static constexpr std::size_t kBits = 64;  // of a word
  struct Group {
    std::int64_t size = 0;
    std::uint32_t list = 0;
  };

  /// How many elements are `before`: all up to one of them, and none after it. Without branches on what they are, which
  /// nothing could predict.
  template <typename List, typename Before>
  static std::uint32_t count_before(const List& list, const Before& before) {
    std::size_t first = 0;
    for (std::size_t left = list.size(), half = 0; left > 0; left -= half) {
      half = left - left / 2;
      first += half & (0 - static_cast<std::size_t>(before(list[first + half - 1])));
    }
    return static_cast<std::uint32_t>(first);
  }
  /// The first group of at least this size, which is above 0.
  std::uint32_t group_of(std::int64_t size) const {
    std::uint32_t& known = known_[place_in_known(size)];
    if (groups_[known].size < size || groups_[known - 1].size >= size) {
      known = count_before(groups_, [&](const Group& group) { return group.size < size; });
    }
    return known;
  }
  static std::size_t place_in_known(std::int64_t size) {
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>((static_cast<std::uint64_t>(size) * kOdd) >> (kBits - kKnownBits));
  }
  static std::uint32_t spots_above(const Spots& spots, std::int64_t address) {
    return count_before(spots, [&](const Spot& spot) { return spot.address > address; });
  }
  /// The first block of this group or one behind it.
  Place first_from(std::uint32_t group) const {
    std::size_t word = group / kBits;
    std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << group % kBits);
    while (bits == 0) {
      if (++word == filled_.size()) return kNowhere;
      bits = filled_[word];
    }
    const std::size_t first = word * kBits + static_cast<std::size_t>(std::countr_zero(bits));
    return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(lists_[groups_[first].list].size()) - 1};
  }
  void mark(std::uint32_t group) { filled_[group / kBits] ^= std::uint64_t{1} << group % kBits; }
  bool is_filled(std::size_t group) const { return (filled_[group / kBits] >> group % kBits & 1U) != 0; }
  /// A group of no blocks yet: its place.
  std::uint32_t add_group(std::int64_t size);
  void drop_empty_groups();

  // By size. The first and the last are never filled: every size lies between theirs.
  std::vector<Group> groups_{{.size = 0}, {.size = std::numeric_limits<std::int64_t>::max()}};
  std::vector<std::uint64_t> filled_{0};  // a bit for each group
  std::size_t filled_groups_ = 0;
  std::vector<Spots> lists_{1};        // the first is that of no group
  std::vector<std::uint32_t> unused_;  // lists
  static constexpr unsigned kKnownBits = 7;
  mutable std::array<std::uint32_t, std::size_t{1} << kKnownBits> known_ = all_ones();  // by a hash of sizes: groups

  static constexpr std::array<std::uint32_t, std::size_t{1} << kKnownBits> all_ones() {
    std::array<std::uint32_t, std::size_t{1} << kKnownBits> ones{};
    ones.fill(1);
    return ones;
  }
};

}  // namespace vramfit
