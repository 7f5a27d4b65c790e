// A replay of PyTorch 2.11's CUDACachingAllocator (backend native): the same blocks, segments, retries and statistics
// for the same requests. docs/allocator.md says how it works and how it was checked.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/text/units.h"
#include "estimator/allocator/driver.h"
#include "estimator/allocator/free_blocks.h"
#include "job/allocator/allocator_settings.h"

namespace vramfit {

/// A current value and its peak.
struct PeakedSum {
  std::int64_t current = 0, peak = 0;
  void add(std::int64_t n) {
    current += n;
    if (current > peak) peak = current;
  }
  bool operator==(const PeakedSum&) const = default;
};

/// The aggregate figures of torch.cuda.memory_stats(), by the same names; bytes unless a count.
struct AllocatorStats {
  PeakedSum requested, allocated, active, reserved;
  std::int64_t alloc_retries = 0, ooms = 0;          // counts
  std::int64_t device_allocs = 0, device_frees = 0;  // counts: mappings of pages are among them
  std::int64_t sync_all_streams = 0;                 // count
  bool operator==(const AllocatorStats&) const = default;
};

/// A block as a snapshot shows it.
struct BlockView {
  std::int64_t size = 0, requested = 0;  // requested: 0 if the block isn't active
  bool allocated = false;                // not yet freed
  bool active = false;                   // or freed, and still waiting for another stream
  bool operator==(const BlockView&) const = default;
};

struct SegmentView {
  std::int64_t address = 0, size = 0;
  int stream = 0;
  bool is_large = false, is_expandable = false;
  std::vector<BlockView> blocks;  // in the order of addresses
  bool operator==(const SegmentView&) const = default;
};

class CachingAllocator {
 public:
  /// What `malloc` returns when there is no memory left.
  static constexpr int kOutOfMemory = -1;
  /// Streams are numbered from 0 to kStreams - 1; number them in the order of their handles.
  static constexpr int kStreams = 64;

  /// `driver` outlives the allocator.
  CachingAllocator(const AllocatorSettings& settings, Driver& driver);

  /// Allocates `bytes` > 0 and returns the block's number; numbers of freed blocks are reused. kOutOfMemory if all
  /// retries fail, and at once for 2^60 bytes or more, as in PyTorch.
  int malloc(std::int64_t bytes, int stream);
  void free(int block);
  /// The block is also used on `stream`: once freed, it waits for an event there.
  void record_stream(int block, int stream);
  /// torch.cuda.empty_cache()
  void empty_cache();

  /// torch.cuda.memory._set_allocator_settings: the memory fraction is not touched by it.
  void set_settings(const AllocatorSettings& settings);
  /// torch.cuda.set_per_process_memory_fraction
  void set_memory_fraction(double fraction);
  void reset_peaks();

  const AllocatorStats& stats() const { return stats_; }
  /// Whether addresses have made any difference so far. If not, any other placement of segments would have given the
  /// same figures.
  bool placement_mattered() const { return placement_mattered_; }
  std::int64_t address(int block) const { return at(block).address; }
  std::int64_t size(int block) const { return at(block).size; }
  bool is_small(int block) const { return at(block).is_small; }
  /// Whether a request is served from the pools of small blocks.
  bool is_small_request(std::int64_t bytes) const;
  bool has_ranges() const { return !ranges_.empty(); }
  /// Whether blocks of one pool are no matter of the others': there is no limit at which any gives memory back.
  bool is_unlimited() const { return !allowed_ && driver_->is_unlimited(); }
  /// Fingerprints of all segments but expandable ones: of the large pools, and of the small ones. With the places of
  /// all allocated blocks they decide what is free and where, because free neighbours are always joined.
  const std::array<std::uint64_t, 2>& segments_state() const { return segments_state_; }
  /// What else decides what happens next. Garbage collection looks at ages, which grow: under it states are equal only
  /// when no segment was asked for in between, without which it does not run.
  std::uint64_t outer_state() const;
  /// A fingerprint: two allocators in equal states answer the same further requests in the same way. `owners`: who owns
  /// each block, by block number; may be shorter.
  std::uint64_t state(std::span<const std::int64_t> owners) const;
  /// Becomes as `end` is, an earlier state of this allocator: what has happened since `then`, when it was in the state
  /// that it is in now, happens again. The driver was asked for nothing since `end`. Counts and peaks go on.
  void repeat_up_to(const CachingAllocator& end, const AllocatorStats& then);
  /// All segments by address; an expandable one is shown as its mapped ranges.
  std::vector<SegmentView> segments() const;

 private:
  struct Block {
    std::int64_t address = 0, size = 0, requested = 0;  // size 0: an unused number
    std::int64_t free_since = 0;                        // searches of its pool when it became free
    std::uint64_t other_streams = 0;                    // a bit for each stream recorded
    int previous = -1, next = -1;                       // neighbours in the segment
    int range = -1;                                     // expandable segment, or -1
    int events = 0;                                     // not yet complete
    std::uint8_t stream = 0;
    bool is_small = false, is_allocated = false, is_mapped = true;
  };
  struct Pool {
    FreeBlocks free;
    std::vector<int> unmapped;  // by address
  };
  /// An expandable segment: addresses for more than the card holds, mapped by pages.
  struct Range {
    std::int64_t address = 0, size = 0, page = 0;
  };
  struct Request {
    std::int64_t size = 0;  // of the block
    int stream = 0;
    bool is_small = false;
  };
  struct Waiting {
    std::int64_t event = 0;
    int block = -1;
  };
  struct StreamEvents {
    std::int64_t recorded = 0;
    std::deque<Waiting> waiting;
  };

  Block& at(int block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(int block) const { return blocks_[static_cast<std::size_t>(block)]; }
  Pool& pool(int stream, bool is_small);
  Pool& pool_of(const Block& block) { return pool(block.stream, block.is_small); }
  int add_block(const Block& block);
  /// Inserts behind `before`, splitting off addresses; both ends are linked.
  int add_behind(int before, std::int64_t address, std::int64_t size);
  void remove_block(int block) {
    at(block).size = 0;
    unused_.push_back(block);
  }

  static constexpr std::int64_t kMostSmall = std::int64_t{1} << 20;
  std::int64_t rounded(std::int64_t bytes) const {
    return rounds_to_divisions_ ? rounded_request(settings_, bytes) : rounded_to_blocks(bytes);
  }
  Request request_for(std::int64_t bytes, int stream) const;
  std::int64_t segment_size(const Request& request) const;
  bool collects_garbage() const { return allowed_ && settings_.garbage_collection_threshold > 0; }
  bool is_whole_large(const Block& block) const { return !block.is_small && block.previous < 0 && block.next < 0; }
  void find_whole_large();
  int take_free_block(const Request& request);
  FreeBlocks::Place best_fit(const FreeBlocks& free, const Request& request) const;
  void note_tie(const FreeBlocks& free, FreeBlocks::Place chosen);
  int new_block(const Request& request, bool is_retry);
  int new_segment(const Request& request);
  int split(int block, const Request& request);
  void hand_out(Block& block, std::int64_t bytes);

  void insert_free(int block);
  /// In place of the block that stood there, if a place is given.
  void insert_free(int block, FreeBlocks& free, FreeBlocks::Place place);
  void erase_free(int block);
  void release_to_pool(int block);
  bool can_merge(const Block& block, int neighbour) const;
  bool merge(int block, int neighbour);
  void join(int block, int neighbour);

  void insert_events(int block);
  void process_events();
  void finish_event(int block);
  void synchronize_events();

  // Memory given back to the card: release.cpp.
  std::vector<int> whole_large_segments() const;
  void collect_garbage();
  bool release_available(const Request& request);
  bool release_cached();
  void release_pool(Pool& pool);
  void release_block(int block);

  // Its fingerprint: state.cpp.
  void note_segment(const Block& block, bool is_new);
  std::vector<std::uint64_t> range_numbers() const;
  std::uint64_t place_of(const Block& block, const std::vector<std::uint64_t>& numbers) const;

  // Expandable segments: expandable.cpp.
  int grow_range(const Request& request);
  int find_growable(const Request& request);
  bool is_allocatable(int block) const;
  bool map(int block, std::int64_t size);
  void unmap(int block);
  void insert_unmapped(int block);
  void erase_unmapped(int block);
  void release_range(int block);
  /// What a free block could become if the unmapped addresses behind it were mapped.
  std::int64_t grown_size(const Block& block) const {
    return block.size + (block.next >= 0 && !at(block.next).is_mapped ? at(block.next).size : 0);
  }

  AllocatorSettings settings_;
  bool rounds_to_divisions_ = false;  // some sizes, of the intervals between powers of two
  Driver* driver_;
  std::optional<std::int64_t> allowed_;  // bytes this process may reserve
  std::int64_t held_ = 0;                // bytes of all segments
  AllocatorStats stats_;
  std::vector<Block> blocks_;
  std::vector<int> unused_;
  std::vector<std::array<Pool, 2>> pools_;  // by stream: large, small
  std::array<std::int64_t, 2> searches_{};  // large, small
  std::set<int> whole_large_;               // free segments that aren't split: kept only for garbage collection
  std::vector<Range> ranges_;
  std::vector<StreamEvents> events_;               // by stream
  std::int64_t waiting_ = 0;                       // events of all streams
  std::array<std::uint64_t, 2> segments_state_{};  // large, small
  bool placement_mattered_ = false;
};

inline bool CachingAllocator::is_small_request(std::int64_t bytes) const { return rounded(bytes) <= kMostSmall; }

}  // namespace vramfit
