// The free blocks of one pool and stream, ordered by size, then address: what best fit searches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vramfit {

/// A sorted set, kept in groups of one size each: a model's layers free hundreds of blocks, of a dozen sizes. Looking
/// for a size passes over groups alone, and its lowest address is the end of a list.
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
  Place begin() const { return first_of(0); }
  Place next(Place place) const {
    if (place.index > 0) return {place.group, place.index - 1};
    return first_of(place.group + 1);
  }
  /// The place before `place`, which must not be the first. If the set isn't empty, the end has a place before it.
  Place previous(Place place) const;
  /// The first entry of at least this size.
  Place lower_bound(std::int64_t size) const { return first_of(group_of(size)); }
  /// Where the block of this size and address is, which must be there.
  Place find(std::int64_t size, std::int64_t address) const {
    const std::uint32_t group = group_of(size, address);
    return {group, spots_above(lists_[groups_[group].list], address)};
  }
  void insert(const Entry& entry);
  void erase(Place place);
  void erase(std::int64_t size, std::int64_t address) { erase(find(size, address)); }
  /// Erases what is at `place` and inserts `entry`, which may belong elsewhere: a block that is split, or that grows.
  void replace(Place place, const Entry& entry);

 private:
  struct Spot {
    std::int64_t address = 0;
    int block = -1;
  };
  /// From the highest address to the lowest, so that the lowest is taken off the end.
  using Spots = std::vector<Spot>;
  static constexpr std::size_t kFew = 8;
  /// Blocks of one size; those of one size may be in several groups, by address.
  struct Group {
    std::int64_t size = 0, highest = 0;  // highest: address
    std::uint32_t list = 0;
  };

  /// How many elements are `before`: all up to one of them, and none after it. Without branches on what they are, which
  /// nothing could predict.
  template <typename List, typename Before>
  static std::uint32_t count_before(const List& list, const Before& before) {
    std::size_t first = 0, left = list.size();
    for (; left > kFew; left /= 2) {
      const std::size_t half = left - left / 2;
      first += half & (0 - static_cast<std::size_t>(before(list[first + half - 1])));
    }
    std::size_t count = first;
    for (const auto* element = list.data() + first; left > 0; --left, ++element) {
      count += static_cast<std::size_t>(before(*element));
    }
    return static_cast<std::uint32_t>(count);
  }
  /// The first group of at least this size; the number of groups: none.
  std::uint32_t group_of(std::int64_t size) const {
    return count_before(groups_, [&](const Group& group) { return group.size < size; });
  }
  /// The first group whose highest block isn't before this one.
  std::uint32_t group_of(std::int64_t size, std::int64_t address) const {
    return count_before(groups_, [&](const Group& group) {
      return (group.size < size) | ((group.size == size) & (group.highest < address));
    });
  }
  static std::uint32_t spots_above(const Spots& spots, std::int64_t address) {
    return count_before(spots, [&](const Spot& spot) { return spot.address > address; });
  }
  Place first_of(std::uint32_t group) const {
    if (group == groups_.size()) return kNowhere;
    return {group, static_cast<std::uint32_t>(lists_[groups_[group].list].size()) - 1};
  }
  /// A group before the one that is at this place, of no blocks yet.
  Group& add_group(std::uint32_t place, std::int64_t size);
  void split(std::uint32_t group);

  std::vector<Group> groups_;  // by size and highest address; none is empty
  std::vector<Spots> lists_;
  std::vector<std::uint32_t> unused_;  // lists
};

}  // namespace vramfit
