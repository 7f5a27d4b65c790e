// A replay of PyTorch's CUDA caching allocator under expandable_segments, for one stream and without a limit.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "model_specs/units.h"

namespace vramfit {

/// Every block is a multiple of 512 bytes: what the allocator counts as allocated for a request.
Bytes allocated_block(Bytes requested);

/// Two pools, one for blocks up to 1 MiB and one for larger ones, each one growing range of addresses that is mapped by
/// pages (2 MiB and 20 MiB). A request takes the best-fitting free block (ties: lowest address), a block at the
/// range's end only when nothing else fits; else the range grows by whole pages. Free neighbours merge. Nothing is
/// unmapped without a limit, so `reserved` never falls. Read from LibTorch 2.11's CUDACachingAllocator.
class ExpandableSegments {
 public:
  /// `id` is small and dense: a ledger's block number.
  void allocate(std::int64_t id, Bytes requested);
  void free(std::int64_t id);
  Bytes reserved() const { return reserved_; }

 private:
  struct Block {
    std::int64_t address = 0, size = 0;
    int previous = -1, next = -1;
    bool is_free = false;
  };
  struct Pool {
    explicit Pool(Bytes page_size) : page(page_size.n) {}
    std::int64_t page;
    std::vector<Block> blocks;
    std::vector<int> unused;  // numbers of merged blocks
    int last = -1;
    std::set<std::pair<std::int64_t, std::pair<std::int64_t, int>>> free;  // size, address, number
  };

  int take(Pool& pool, std::int64_t size);
  int grow(Pool& pool, std::int64_t size);
  static int add_block(Pool& pool, const Block& block);
  static void set_free(Pool& pool, int number);
  static void set_used(Pool& pool, int number);
  static void split(Pool& pool, int number, std::int64_t size);
  static void merge_with_next(Pool& pool, int number);

  std::array<Pool, 2> pools_{Pool(2 * kMiB), Pool(20 * kMiB)};
  std::vector<std::pair<int, int>> places_;  // by id: pool, block
  Bytes reserved_;
};

}  // namespace vramfit
