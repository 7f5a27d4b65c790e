#include "estimator/allocator/free_blocks.h"

#include <algorithm>

namespace vramfit {

namespace {

constexpr std::size_t kFewEmptyGroups = 64;

}  // namespace

FreeBlocks::Place FreeBlocks::previous(Place place) const {
  std::size_t group = groups_.size();
  if (!place.is_end()) {
    group = place.group;
    if (place.index + 1 < lists_[groups_[group].list].size()) return {place.group, place.index + 1};
  }
  do --group;
  while (!is_filled(group));
  return {static_cast<std::uint32_t>(group), 0};
}

/// Sizes that don't come again leave empty groups behind, which are dropped once they are the most of them.
std::uint32_t FreeBlocks::add_group(std::int64_t size) {
  if (groups_.size() > 2 * filled_groups_ + kFewEmptyGroups) drop_empty_groups();
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::uint32_t>(lists_.size()));
    lists_.emplace_back();
  }
  const std::uint32_t place = group_of(size);
  groups_.insert(groups_.begin() + place, Group{.size = size, .list = unused_.back()});
  unused_.pop_back();
  if (groups_.size() > filled_.size() * kBits) filled_.push_back(0);
  const std::size_t word = place / kBits;
  for (std::size_t later = filled_.size() - 1; later > word; --later) {
    filled_[later] = filled_[later] << 1U | filled_[later - 1] >> (kBits - 1);
  }
  const std::uint64_t before = (std::uint64_t{1} << place % kBits) - 1;
  filled_[word] = (filled_[word] & before) | (filled_[word] & ~before) << 1U;
  return place;
}

void FreeBlocks::drop_empty_groups() {
  std::size_t kept = 1;
  for (std::size_t group = 1; group < groups_.size(); ++group) {
    if (is_filled(group) || group + 1 == groups_.size()) {
      groups_[kept++] = groups_[group];
    } else {
      unused_.push_back(groups_[group].list);
    }
  }
  groups_.resize(kept);
  filled_.assign(kept / kBits + 1, 0);
  for (std::uint32_t group = 1; group + 1 < kept; ++group) mark(group);
  known_ = all_ones();
}

void FreeBlocks::insert(const Entry& entry) {
  std::uint32_t place = group_of(entry.size);
  if (groups_[place].size != entry.size) place = add_group(entry.size);
  Spots& spots = lists_[groups_[place].list];
  if (spots.empty()) {
    mark(place);
    ++filled_groups_;
  }
  const Spot spot{.address = entry.address, .block = entry.block};
  spots.insert(spots.begin() + spots_above(spots, entry.address), spot);
}

void FreeBlocks::erase(Place place) {
  Spots& spots = lists_[groups_[place.group].list];
  spots.erase(spots.begin() + place.index);
  if (!spots.empty()) return;
  mark(place.group);
  --filled_groups_;
}

/// A block that is alone in its group often stays between the same others.
void FreeBlocks::replace(Place place, const Entry& entry) {
  Group& group = groups_[place.group];
  Spots& spots = lists_[group.list];
  if (spots.size() == 1 && groups_[place.group - 1].size < entry.size && entry.size < groups_[place.group + 1].size) {
    group.size = entry.size;
    spots.front() = {.address = entry.address, .block = entry.block};
    return;
  }
  erase(place);
  insert(entry);
}

}  // namespace vramfit
