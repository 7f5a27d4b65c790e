#include "program/arena/packing.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>

#include <fmt/format.h>

#include "base/numbers/index.h"
#include "program/arena/placer.h"

namespace vramfit::arena {

namespace {

constexpr std::int64_t kGoodEnough = 500;  // ends within 1/500 of the bound
constexpr std::uint64_t kSeed = 20261122;  // equal input, equal offsets

/// The blocks that have bytes and a life, by birth.
struct Blocks {
  std::vector<Interval> intervals;
  std::vector<int> kinds;
  std::vector<std::size_t> which;  // of the caller's
  int peak = 0;                    // at whose birth the most lives
  std::int64_t bound = 0;          // in granules

  int count() const { return static_cast<int>(intervals.size()); }
  std::int64_t size(int block) const { return intervals[at(block)].size; }
  std::int64_t life(int block) const { return intervals[at(block)].end - block; }
};

void find_peak(Blocks& blocks) {
  std::vector<std::int64_t> freed(blocks.intervals.size() + 1);
  std::int64_t live = 0;
  for (int block = 0; block < blocks.count(); ++block) {
    live += blocks.size(block) - freed[at(block)];
    freed[at(blocks.intervals[at(block)].end)] += blocks.size(block);
    if (live <= blocks.bound) continue;
    blocks.bound = live;
    blocks.peak = block;
  }
}

Blocks blocks_of(const std::vector<Lifetime>& lifetimes, Bytes granule) {
  Blocks blocks;
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    if (lifetimes[i].bytes.n > 0 && lifetimes[i].born < lifetimes[i].dies) blocks.which.push_back(i);
  }
  std::ranges::stable_sort(blocks.which, {}, [&](std::size_t i) { return lifetimes[i].born; });
  std::int64_t all = 0;
  for (const std::size_t i : blocks.which) {
    const Lifetime& life = lifetimes[i];
    const auto end =
        std::ranges::lower_bound(blocks.which, life.dies, {}, [&](std::size_t j) { return lifetimes[j].born; });
    const std::int64_t size = ceil_div(life.bytes.n, granule.n);
    all = checked_add(all, checked_mul(size, granule.n));
    blocks.intervals.push_back({.size = size, .end = static_cast<int>(end - blocks.which.begin())});
    blocks.kinds.push_back(life.kind);
  }
  find_peak(blocks);
  return blocks;
}

struct Order {
  std::string_view name;
  /// Blocks with more of it come first; those with as much by birth.
  std::array<double, 2> (*key)(const Blocks&, int block);
  Fit fit;
};

std::array<double, 2> by_size(const Blocks& b, int block) {
  return {static_cast<double>(b.size(block)), static_cast<double>(b.life(block))};
}
std::array<double, 2> by_life(const Blocks& b, int block) {
  return {static_cast<double>(b.life(block)), static_cast<double>(b.size(block))};
}
std::array<double, 2> by_area(const Blocks& b, int block) {
  return {static_cast<double>(b.size(block)) * static_cast<double>(b.life(block)), 0};
}
/// What never dies first, which leaves one range to all others.
std::array<double, 2> residents_first(const Blocks& b, int block) {
  const bool is_resident = b.intervals[at(block)].end == b.count() && block <= b.peak;
  return {is_resident ? 1.0 : 0.0, static_cast<double>(b.size(block))};
}
std::array<double, 2> by_birth(const Blocks& /*b*/, int /*block*/) { return {}; }

constexpr std::array kOrders{
    Order{"size", by_size, Fit::lowest_gap},
    Order{"size, smallest gap", by_size, Fit::smallest_gap},
    Order{"residents, size", residents_first, Fit::lowest_gap},
    Order{"area", by_area, Fit::lowest_gap},
    Order{"lifetime", by_life, Fit::lowest_gap},
    Order{"birth", by_birth, Fit::lowest_gap},
    Order{"birth, smallest gap", by_birth, Fit::smallest_gap},
};

std::vector<int> sorted_by(const Order& order, const Blocks& blocks) {
  std::vector<std::array<double, 2>> keys;
  for (int block = 0; block < blocks.count(); ++block) keys.push_back(order.key(blocks, block));
  std::vector<int> sorted(blocks.intervals.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::ranges::stable_sort(sorted, [&](int a, int b) { return keys[at(a)] > keys[at(b)]; });
  return sorted;
}

struct Best {
  std::vector<std::int64_t> offsets;
  std::vector<int> order;
  Fit fit = Fit::lowest_gap;
  std::int64_t height = Placer::kNoLimit;
  std::string_view name;
};

/// Improves the best packing: blocks of the kinds that stick out of it are moved to the front of its order.
class Improvement {
 public:
  Improvement(const Blocks& blocks, Placer& placer, Best& best)
      : blocks_(blocks), placer_(placer), best_(best), random_(kSeed) {}

  void run(std::int64_t good_enough, std::int64_t until) {
    start();
    while (best_.height > good_enough && placer_.work() < until && !kinds_.empty()) try_one();
  }

 private:
  /// Kinds in the order in which the best packing first places one, and the kinds that reach above the bound.
  void start() {
    kinds_.clear();
    std::set<int> seen, out;
    for (const int block : best_.order) {
      if (seen.insert(kind(block)).second) kinds_.push_back(kind(block));
      if (best_.offsets[at(block)] + blocks_.size(block) > blocks_.bound) out.insert(kind(block));
    }
    sticking_out_.assign(out.begin(), out.end());
  }

  int kind(int block) const { return blocks_.kinds[at(block)]; }
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

  void try_one() {
    std::vector<int> kinds = kinds_;
    const std::size_t moves = 1 + below(3);
    for (std::size_t move = 0; move < moves; ++move) {
      const bool takes_out = move == 0 || below(2) == 0;
      const int chosen = takes_out ? sticking_out_[below(sticking_out_.size())] : kinds[below(kinds.size())];
      const auto from = std::ranges::find(kinds, chosen);
      const std::size_t to = below(static_cast<std::size_t>(from - kinds.begin()) + 1);
      std::rotate(kinds.begin() + static_cast<std::ptrdiff_t>(to), from, from + 1);
    }
    std::vector<int> order = ordered_by(kinds);
    const std::int64_t height = placer_.place(order, best_.fit, best_.height);
    if (height >= best_.height) return;
    best_ = {placer_.offsets(), std::move(order), best_.fit, height, "improved"};
    start();
  }

  std::vector<int> ordered_by(const std::vector<int>& kinds) const {
    const int most = *std::ranges::max_element(kinds);
    std::vector<int> rank(at(most) + 1);
    for (std::size_t i = 0; i < kinds.size(); ++i) rank[at(kinds[i])] = static_cast<int>(i);
    std::vector<int> order = best_.order;
    std::ranges::stable_sort(order, {}, [&](int block) { return rank[at(kind(block))]; });
    return order;
  }

  const Blocks& blocks_;
  Placer& placer_;
  Best& best_;
  std::mt19937_64 random_;
  std::vector<int> kinds_, sticking_out_;
};

Best best_of(const Blocks& blocks, std::int64_t effort) {
  Best best;
  Placer placer(blocks.intervals, blocks.peak);
  const std::int64_t good_enough = blocks.bound + blocks.bound / kGoodEnough;
  for (const Order& order : kOrders) {
    if (best.height <= good_enough || (placer.work() >= effort && !best.order.empty())) return best;
    std::vector<int> sorted = sorted_by(order, blocks);
    const std::int64_t height = placer.place(sorted, order.fit, best.height);
    if (height < best.height) best = {placer.offsets(), std::move(sorted), order.fit, height, order.name};
  }
  Improvement(blocks, placer, best).run(good_enough, effort);
  return best;
}

}  // namespace

Bytes most_alive(const std::vector<Lifetime>& lifetimes, Bytes granule) {
  return blocks_of(lifetimes, granule).bound * granule;
}

Packing pack(const std::vector<Lifetime>& lifetimes, Bytes granule, std::int64_t effort) {
  Packing packing;
  packing.offsets.resize(lifetimes.size());
  const Blocks blocks = blocks_of(lifetimes, granule);
  if (blocks.intervals.empty()) return packing;
  const Best best = best_of(blocks, effort);
  for (std::size_t i = 0; i < blocks.which.size(); ++i) {
    packing.offsets[blocks.which[i]] = best.offsets[i] * granule;
  }
  packing.size = best.height * granule;
  packing.bound = blocks.bound * granule;
  packing.order = best.name;
  return packing;
}

std::optional<std::string> fault_of(const std::vector<Lifetime>& lifetimes, const Packing& packing, Bytes granule) {
  struct Moment {
    std::int64_t time;
    bool is_birth;
    std::size_t block;
  };
  std::vector<Moment> moments;
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    if (lifetimes[i].bytes.n <= 0 || lifetimes[i].born >= lifetimes[i].dies) continue;
    const std::int64_t offset = packing.offsets[i].n;
    if (offset < 0 || offset % granule.n != 0) return fmt::format("block {} is at {}", i, offset);
    if (offset > packing.size.n - lifetimes[i].bytes.n) return fmt::format("block {} ends beyond the size", i);
    moments.push_back({lifetimes[i].born, true, i});
    moments.push_back({lifetimes[i].dies, false, i});
  }
  std::ranges::stable_sort(moments, [](const Moment& a, const Moment& b) {
    return a.time != b.time ? a.time < b.time : !a.is_birth && b.is_birth;
  });
  std::set<std::pair<std::int64_t, std::size_t>> live;  // by offset
  for (const Moment& moment : moments) {
    const std::pair<std::int64_t, std::size_t> own{packing.offsets[moment.block].n, moment.block};
    if (!moment.is_birth) {
      live.erase(own);
      continue;
    }
    const auto next = live.lower_bound(own);
    const auto overlaps = [&](std::size_t lower, std::size_t upper) {
      return packing.offsets[lower].n + lifetimes[lower].bytes.n > packing.offsets[upper].n;
    };
    if (next != live.end() && overlaps(moment.block, next->second)) {
      return fmt::format("blocks {} and {} overlap", moment.block, next->second);
    }
    if (next != live.begin() && overlaps(std::prev(next)->second, moment.block)) {
      return fmt::format("blocks {} and {} overlap", std::prev(next)->second, moment.block);
    }
    live.insert(own);
  }
  return std::nullopt;
}

}  // namespace vramfit::arena
