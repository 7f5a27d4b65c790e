#include "estimator/allocator/free_blocks.h"

#include <algorithm>

namespace vramfit {

namespace {

constexpr std::size_t kMostInGroup = 128;  // 2 KiB: an insertion moves half of it

}  // namespace

FreeBlocks::Place FreeBlocks::previous(Place place) const {
  if (!place.is_end() && place.index + 1 < lists_[groups_[place.group].list].size()) {
    return {place.group, place.index + 1};
  }
  return {(place.is_end() ? static_cast<std::uint32_t>(groups_.size()) : place.group) - 1, 0};
}

FreeBlocks::Group& FreeBlocks::add_group(std::uint32_t place, std::int64_t size) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::uint32_t>(lists_.size()));
    lists_.emplace_back();
  }
  const std::uint32_t list = unused_.back();
  unused_.pop_back();
  return *groups_.insert(groups_.begin() + place, Group{.size = size, .list = list});
}

/// The higher half becomes a group of its own.
void FreeBlocks::split(std::uint32_t group) {
  Group& upper = add_group(group + 1, groups_[group].size);
  Group& lower = groups_[group];
  Spots& spots = lists_[lower.list];
  const auto middle = spots.begin() + static_cast<std::ptrdiff_t>(spots.size() / 2);
  lists_[upper.list].assign(spots.begin(), middle);
  spots.erase(spots.begin(), middle);
  upper.highest = lower.highest;
  lower.highest = spots.front().address;
}

void FreeBlocks::insert(const Entry& entry) {
  std::uint32_t place = group_of(entry.size, entry.address);
  if (place == groups_.size() || groups_[place].size != entry.size) {
    if (place > 0 && groups_[place - 1].size == entry.size) {
      --place;
    } else {
      add_group(place, entry.size);
    }
  }
  Group& group = groups_[place];
  Spots& spots = lists_[group.list];
  const Spot spot{.address = entry.address, .block = entry.block};
  spots.insert(spots.begin() + spots_above(spots, entry.address), spot);
  group.highest = spots.front().address;
  if (spots.size() > kMostInGroup) split(place);
}

void FreeBlocks::erase(Place place) {
  Group& group = groups_[place.group];
  Spots& spots = lists_[group.list];
  spots.erase(spots.begin() + place.index);
  if (!spots.empty()) {
    group.highest = spots.front().address;
    return;
  }
  unused_.push_back(group.list);
  groups_.erase(groups_.begin() + place.group);
}

/// A block that is alone in its group often stays between the same others.
void FreeBlocks::replace(Place place, const Entry& entry) {
  Group& group = groups_[place.group];
  Spots& spots = lists_[group.list];
  const bool is_first = place.group == 0, is_last = place.group + 1 == groups_.size();
  if (spots.size() == 1 && (is_first || groups_[place.group - 1].size < entry.size) &&
      (is_last || groups_[place.group + 1].size > entry.size)) {
    group.size = entry.size;
    group.highest = entry.address;
    spots.front() = {.address = entry.address, .block = entry.block};
    return;
  }
  erase(place);
  insert(entry);
}

}  // namespace vramfit
