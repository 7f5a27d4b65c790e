#include "program/arena/placer.h"

#include <algorithm>

#include "base/numbers/index.h"

namespace vramfit::arena {

void RangeSet::add(std::int64_t from, std::int64_t to) {
  const auto first = std::ranges::lower_bound(ranges_, from, {}, &Range::second);
  auto last = first;
  for (; last != ranges_.end() && last->first <= to; ++last) {
    from = std::min(from, last->first);
    to = std::max(to, last->second);
  }
  if (first == last) {
    ranges_.insert(first, {from, to});
    return;
  }
  *first = {from, to};
  ranges_.erase(first + 1, last);
}

Placer::Placer(const std::vector<Interval>& intervals, int peak)
    : intervals_(intervals),
      count_(static_cast<int>(intervals.size())),
      is_resident_(intervals.size()),
      alive_(2 * intervals.size()) {
  for (int block = 0; block <= peak && block < count_; ++block) {
    if (intervals[at(block)].end < count_) continue;
    is_resident_[at(block)] = true;
    last_resident_ = block;
  }
}

std::int64_t Placer::place(const std::vector<int>& order, Fit fit, std::int64_t limit) {
  offsets_.assign(intervals_.size(), -1);
  for (std::vector<int>& node : alive_) node.clear();
  residents_.clear();
  beside_residents_.clear();
  placed_residents_.clear();
  placed_early_.clear();
  std::int64_t height = 0;
  for (const int block : order) {
    const std::int64_t offset = gap_for(block, fit);
    height = std::max(height, offset + intervals_[at(block)].size);
    if (height >= limit) return kNoLimit;
    insert(block, offset);
  }
  return height;
}

std::int64_t Placer::gap_for(int block, Fit fit) {
  occupied_.clear();
  is_resident_[at(block)] ? find_occupied_for_resident(block) : find_occupied(block);
  work_ += static_cast<std::int64_t>(occupied_.size());
  std::ranges::sort(occupied_);
  const std::int64_t size = intervals_[at(block)].size;
  std::int64_t free_from = 0, best = -1, best_gap = kNoLimit;
  for (const auto& [from, to] : occupied_) {
    const std::int64_t gap = from - free_from;
    if (gap >= size && gap < best_gap) {
      best = free_from;
      best_gap = gap;
      if (fit == Fit::lowest_gap) return best;
    }
    free_from = std::max(free_from, to);
  }
  return best >= 0 ? best : free_from;
}

void Placer::take(int block) {
  const std::int64_t offset = offsets_[at(block)];
  occupied_.emplace_back(offset, offset + intervals_[at(block)].size);
}

/// What is placed and alive when the block is born, and what is born while it lives.
void Placer::find_occupied(int block) {
  const int end = intervals_[at(block)].end;
  for (int node = block + count_; node >= 1; node /= 2) {
    for (const int other : alive_[at(node)]) take(other);
  }
  for (int other = block + 1; other < end; ++other) {
    if (offsets_[at(other)] >= 0 && !is_resident_[at(other)]) take(other);
  }
  if (end > last_resident_) {
    occupied_.insert(occupied_.end(), residents_.ranges().begin(), residents_.ranges().end());
    return;
  }
  for (const int resident : placed_residents_) {
    if (resident < end) take(resident);
  }
}

void Placer::find_occupied_for_resident(int block) {
  occupied_ = beside_residents_.ranges();
  for (const int other : placed_early_) {
    if (intervals_[at(other)].end > block) take(other);
  }
}

void Placer::insert(int block, std::int64_t offset) {
  const Interval& interval = intervals_[at(block)];
  offsets_[at(block)] = offset;
  if (is_resident_[at(block)]) {
    residents_.add(offset, offset + interval.size);
    beside_residents_.add(offset, offset + interval.size);
    placed_residents_.push_back(block);
    return;
  }
  if (interval.end > last_resident_) {
    beside_residents_.add(offset, offset + interval.size);
  } else {
    placed_early_.push_back(block);
  }
  for (int from = block + count_, to = interval.end + count_; from < to; from /= 2, to /= 2) {
    if (from % 2 == 1) alive_[at(from++)].push_back(block);
    if (to % 2 == 1) alive_[at(--to)].push_back(block);
  }
}

}  // namespace vramfit::arena
