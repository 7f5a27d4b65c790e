// CachingAllocator over a card without a limit, for a ledger that is known beforehand: the same blocks and figures from
// native segments, in a third of the time. Memory is returned only where the ledger empties the cache, so pools don't
// affect each other. The sizes that will be asked for are known, so free blocks are kept by these sizes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/allocator/compact_ledger.h"
#include "estimator/allocator/ledger_replay.h"

namespace vramfit {

/// The free blocks of a pool that some request may take. Bucket n has those of at least the n-th size of the pool
/// (from 1) that are smaller than the next: what fits a request best is the first block of the first bucket, from its
/// own on, that has one.
class FreeBuckets {
 public:
  // A block's size, address and number: sorted by these, as best fit does.
  __extension__ typedef unsigned __int128 Key;  // NOLINT(modernize-use-using): no other form has __extension__
  static Key key_of(std::uint32_t size, std::uint64_t address, std::uint32_t block) {
    return Key{size} << kSizeShift | Key{address} << kAddressShift | block;
  }
  static std::uint32_t block_of(Key key) { return static_cast<std::uint32_t>(key); }
  static std::uint32_t size_of(Key key) { return static_cast<std::uint32_t>(key >> kSizeShift); }

  explicit FreeBuckets(const std::vector<std::uint32_t>& sizes);

  std::uint32_t size(std::uint8_t number) const { return sizes_[number - std::size_t{1}]; }
  /// Of a block of this size; 0: no request can take it, and it is not kept here.
  std::uint8_t bucket_of(std::uint32_t size) const {
    std::size_t bucket = first_[static_cast<std::size_t>(std::bit_width(size))];
    while (sizes_[bucket] <= size) ++bucket;
    return static_cast<std::uint8_t>(bucket);
  }
  /// The first bucket from `bucket` on that has a block; 0: none.
  std::uint8_t filled_from(std::uint8_t bucket) const {
    std::size_t word = bucket / kBits;
    std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << bucket % kBits);
    while (bits == 0) {
      if (++word == kWords) return 0;
      bits = filled_[word];
    }
    return static_cast<std::uint8_t>(word * kBits + static_cast<std::size_t>(std::countr_zero(bits)));
  }
  Key first(std::uint8_t bucket) const { return keys_[bucket].back(); }
  /// Whether another block has the size of the bucket's first.
  bool is_tied(std::uint8_t bucket) const {
    const Keys& keys = keys_[bucket];
    return keys.size() > 1 && size_of(keys[keys.size() - 2]) == size_of(keys.back());
  }
  /// Calls visit(block) with the bucket's blocks that have the size of its first.
  template <typename Visit>
  void visit_tied(std::uint8_t bucket, const Visit& visit) const {
    const Keys& keys = keys_[bucket];
    for (std::size_t i = keys.size(); i > 0 && size_of(keys[i - 1]) == size_of(keys.back()); --i) {
      visit(block_of(keys[i - 1]));
    }
  }
  void drop_first(std::uint8_t bucket) {
    keys_[bucket].pop_back();
    if (keys_[bucket].empty()) mark(bucket);
  }
  /// The first one has become smaller, and stays in its bucket.
  void shrink_first(std::uint8_t bucket, Key key) { keys_[bucket].back() = key; }
  /// One that was there has become larger, and stays in its bucket.
  void grow(std::uint8_t bucket, Key before, Key key);
  void insert(std::uint8_t bucket, Key key) {
    if (bucket == 0) return;
    Keys& keys = keys_[bucket];
    if (!keys.empty()) return insert_among(keys, key);
    mark(bucket);
    keys.push_back(key);
  }
  void erase(std::uint8_t bucket, Key key);

 private:
  using Keys = std::vector<Key>;  // from the last to the first
  static constexpr unsigned kSizeShift = 96, kAddressShift = 32;
  static constexpr std::size_t kBits = 64, kWords = 4;  // bits of a word, and words for all buckets

  static std::size_t place_of(const Keys& keys, Key key);
  static void insert_among(Keys& keys, Key key);
  void mark(std::uint8_t bucket) { filled_[bucket / kBits] ^= std::uint64_t{1} << bucket % kBits; }

  std::vector<std::uint32_t> sizes_;            // ascending; then one that is larger than all blocks
  std::array<std::uint8_t, 33> first_{};        // by the width of a size in bits: how many sizes are less wide
  std::array<std::uint64_t, kWords> filled_{};  // a bit for each bucket
  std::vector<Keys> keys_;                      // by bucket
};

/// Plays a compact ledger. The ledger and the driver, which has no limit, outlive it.
class UnlimitedReplay {
 public:
  UnlimitedReplay(const CompactLedger& ledger, const AllocatorSettings& settings, Driver& driver, Bytes below);

  /// What has been allocated at most after a malloc of a run.
  struct Most {
    bool is_played = false;       // false: no addresses are left, or as much is reserved as nobody asks about
    std::int64_t allocated = -1;  // bytes; -1: the run had no malloc
    std::size_t position = 0;     // in the ledger: the first malloc after which it was allocated
  };
  Most play(const CompactLedger::Run& run);
  /// A free that isn't in the ledger.
  void free(const Event& event);

  // As those of LedgerReplay.
  void swap(std::int64_t found, std::int64_t made);
  ReplayState state();
  void repeat_up_to(const UnlimitedReplay& end, const AllocatorStats& then);
  void set_only_small(bool only_small) { only_small_ = only_small; }
  static bool pools_are_apart() { return true; }
  bool is_large(std::int64_t id) const {
    const std::uint32_t block = owned_[static_cast<std::size_t>(id)];
    return block != kNone && !CompactLedger::is_small(blocks_[block].pool);
  }
  bool placement_mattered() const { return placement_mattered_; }
  /// Of large pools that are left out, what is requested still counts. What is active is what is allocated.
  AllocatorStats stats() const;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  /// Sizes and addresses are in units of kMinBlock.
  struct Block {
    std::uint64_t address = 0;
    std::uint32_t size = 0;                        // 0: an unused number
    std::uint32_t previous = kNone, next = kNone;  // neighbours in the segment
    std::uint8_t pool = 0, bucket = 0;             // bucket: where it is, or would be if it were free
    bool is_free = false;
    std::uint32_t owner = 0;  // the id of an allocated one
  };
  using Request = CompactLedger::Request;

  template <bool is_only_small>
  bool play(std::size_t begin, std::size_t end, Most& most);
  bool allocate(const Request& request);
  bool allocate_segment(const Request& request, std::uint32_t size);
  void hand_out(std::uint32_t id, std::uint32_t block);
  void release(std::uint32_t id);
  bool begin_pair(const Request& request);
  void end_pair(const Request& request);
  void join_pool(std::uint32_t block);
  void note_tie(const FreeBuckets& free, std::uint8_t bucket);
  void insert(FreeBuckets& free, std::uint32_t number);
  void move(FreeBuckets& free, std::uint32_t number, std::uint8_t bucket_before, FreeBuckets::Key before);
  void empty_cache();
  template <bool is_only_small>
  ReplayState blocks_state() const;
  std::uint32_t add_block(const Block& block);
  void note_segment(const Block& block, bool is_new);
  FreeBuckets::Key key_of(std::uint32_t number) const {
    return FreeBuckets::key_of(blocks_[number].size, blocks_[number].address, number);
  }

  const CompactLedger* ledger_;
  Driver* driver_;
  std::int64_t large_segment_bytes_;
  std::int64_t below_bytes_;
  std::vector<FreeBuckets> pools_;  // by pool
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> unused_;
  std::vector<std::uint32_t> owned_;                                // blocks, by id
  std::int64_t allocated_ = 0;                                      // in units of kMinBlock
  std::array<std::uint32_t, std::size_t{2} * kStreams> in_pair_{};  // likewise, by pool: of a pair that has begun
  AllocatorStats stats_;                       // without what stats() adds: allocated and active now
  ReplayState segments_;                       // sums over segments, of fingerprints
  std::optional<std::uint64_t> large_blocks_;  // a sum over those that are allocated, where none has changed since
  bool only_small_ = false, placement_mattered_ = false;
};

}  // namespace vramfit
