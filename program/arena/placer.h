// Places blocks one after the other, each in a gap that those placed before it leave while it lives.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace vramfit::arena {

/// Block i of those sorted by birth. It lives at once with the later block j if j < end.
struct Interval {
  std::int64_t size = 0;  // in granules, at least 1
  int end = 0;
};

/// Ranges of memory, sorted, none touching another.
class RangeSet {
 public:
  using Range = std::pair<std::int64_t, std::int64_t>;
  void clear() { ranges_.clear(); }
  void add(std::int64_t from, std::int64_t to);
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

enum class Fit { lowest_gap, smallest_gap };

class Placer {
 public:
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  /// `intervals` outlive it. `peak`: the block at whose birth the most is alive.
  Placer(const std::vector<Interval>& intervals, int peak);

  /// The height that the packing reaches; kNoLimit as soon as that is `limit` or more.
  std::int64_t place(const std::vector<int>& order, Fit fit, std::int64_t limit = kNoLimit);
  /// Of the last packing, by block.
  const std::vector<std::int64_t>& offsets() const { return offsets_; }
  /// Overlaps looked at so far.
  std::int64_t work() const { return work_; }

 private:
  std::int64_t gap_for(int block, Fit fit);
  void find_occupied(int block);
  void find_occupied_for_resident(int block);
  void take(int block);
  void insert(int block, std::int64_t offset);

  const std::vector<Interval>& intervals_;
  int count_;
  // What is born before the peak and never dies lies everywhere in time: it is kept as few ranges, not as blocks.
  std::vector<bool> is_resident_;
  int last_resident_ = -1;
  std::vector<std::int64_t> offsets_;      // -1: not placed yet
  std::vector<std::vector<int>> alive_;    // segment tree over births: blocks that are alive all through a node
  RangeSet residents_, beside_residents_;  // the latter: all that lives when the last resident is born or later
  std::vector<int> placed_residents_, placed_early_;  // early: dead before the last resident is born
  std::vector<RangeSet::Range> occupied_;
  std::int64_t work_ = 0;
};

}  // namespace vramfit::arena
