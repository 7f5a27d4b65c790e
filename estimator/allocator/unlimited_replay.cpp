#include "estimator/allocator/unlimited_replay.h"

#include <algorithm>
#include <limits>

#include "base/numbers/mix_bits.h"

namespace vramfit {

namespace {

constexpr std::int64_t kSmallSegmentBytes = std::int64_t{2} << 20;
constexpr std::int64_t kOwnSegmentBytes = std::int64_t{10} << 20;  // as in caching_allocator.cpp
constexpr std::uint32_t kMostSmall = (1U << 20U) / kMinBlock;
constexpr std::size_t kFew = 8;

}  // namespace

FreeBuckets::FreeBuckets(const std::vector<std::uint32_t>& sizes) : sizes_(sizes), keys_(sizes.size() + 1) {
  for (std::size_t width = 0; width < first_.size(); ++width) {
    const auto is_less_wide = [&](std::uint32_t size) {
      return static_cast<std::size_t>(std::bit_width(size)) < width;
    };
    first_[width] = static_cast<std::uint8_t>(std::ranges::count_if(sizes, is_less_wide));
  }
  sizes_.push_back(std::numeric_limits<std::uint32_t>::max());
}

/// How many keys are above `key`. Few are looked at one by one from the end, where most that change are.
inline std::size_t FreeBuckets::place_of(const Keys& keys, Key key) {
  std::size_t first = 0, left = keys.size();
  if (left > kFew) {
    while (left > 0) {
      const std::size_t half = left - left / 2;
      if (keys[first + half - 1] > key) first += half;
      left -= half;
    }
    return first;
  }
  while (left > 0 && keys[left - 1] <= key) --left;
  return left;
}

void FreeBuckets::insert_among(Keys& keys, Key key) {
  keys.insert(keys.begin() + static_cast<std::ptrdiff_t>(place_of(keys, key)), key);
}

inline void FreeBuckets::erase(std::uint8_t bucket, Key key) {
  if (bucket == 0) return;
  Keys& keys = keys_[bucket];
  keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(place_of(keys, key)));
  if (keys.empty()) mark(bucket);
}

inline void FreeBuckets::grow(std::uint8_t bucket, Key before, Key key) {
  if (bucket == 0) return;
  Keys& keys = keys_[bucket];
  std::size_t place = place_of(keys, before);
  for (; place > 0 && keys[place - 1] < key; --place) keys[place] = keys[place - 1];
  keys[place] = key;
}

UnlimitedReplay::UnlimitedReplay(const CompactLedger& ledger, const AllocatorSettings& settings, Driver& driver,
                                 Bytes below)
    : ledger_(&ledger),
      driver_(&driver),
      large_segment_bytes_(settings.large_segment.n),
      below_bytes_(below.n),
      owned_(ledger.words.size(), kNone) {
  for (const CompactLedger::Pool& pool : ledger.pools) pools_.emplace_back(pool.sizes);
}

inline std::uint32_t UnlimitedReplay::add_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<std::uint32_t>(blocks_.size() - 1);
  }
  const std::uint32_t number = unused_.back();
  unused_.pop_back();
  blocks_[number] = block;
  return number;
}

inline void UnlimitedReplay::insert(FreeBuckets& free, std::uint32_t number) {
  Block& block = blocks_[number];
  block.is_free = true;
  free.insert(block.bucket, key_of(number));
}

/// A free block that was in `bucket_before` as `before` has become larger.
inline void UnlimitedReplay::move(FreeBuckets& free, std::uint32_t number, std::uint8_t bucket_before,
                                  FreeBuckets::Key before) {
  Block& block = blocks_[number];
  block.bucket = free.bucket_of(block.size);
  if (block.bucket == bucket_before) {
    free.grow(bucket_before, before, key_of(number));
  } else {
    free.erase(bucket_before, before);
    free.insert(block.bucket, key_of(number));
  }
}

inline void UnlimitedReplay::hand_out(std::uint32_t id, std::uint32_t number) {
  Block& block = blocks_[number];
  owned_[id] = number;
  block.owner = id;
  allocated_ += block.size;
}

/// The rest of a block keeps its number.
[[gnu::always_inline]] inline bool UnlimitedReplay::allocate(const Request& request) {
  FreeBuckets& free = pools_[request.pool];
  const std::uint32_t size = free.size(request.size);
  const std::uint8_t bucket = free.filled_from(request.size);
  if (bucket == 0) return allocate_segment(request, size);
  if (!placement_mattered_) note_tie(free, bucket);
  const std::uint32_t number = FreeBuckets::block_of(free.first(bucket));
  Block& block = blocks_[number];
  const std::uint32_t left = block.size - size;
  if (left <= (CompactLedger::is_small(request.pool) ? 0 : kMostSmall)) {
    free.drop_first(bucket);
    block.is_free = false;
    hand_out(request.id, number);
    return true;
  }
  const Block made{.address = block.address,
                   .size = size,
                   .previous = block.previous,
                   .next = number,
                   .pool = request.pool,
                   .bucket = request.size};
  block.address += size;
  block.size = left;
  const std::uint8_t bucket_now = free.bucket_of(left);
  block.bucket = bucket_now;
  const FreeBuckets::Key key = FreeBuckets::key_of(left, block.address, number);
  const std::uint32_t taken = add_block(made);
  if (made.previous != kNone) blocks_[made.previous].next = taken;
  blocks_[number].previous = taken;
  if (bucket_now == bucket) {
    free.shrink_first(bucket, key);
  } else {
    free.drop_first(bucket);
    free.insert(bucket_now, key);
  }
  hand_out(request.id, taken);
  return true;
}

bool UnlimitedReplay::allocate_segment(const Request& request, std::uint32_t size) {
  const bool is_small = CompactLedger::is_small(request.pool);
  const std::int64_t bytes = size * kMinBlock;
  const std::int64_t segment_bytes = is_small                   ? kSmallSegmentBytes
                                     : bytes < kOwnSegmentBytes ? large_segment_bytes_
                                                                : round_up(bytes, kSmallSegmentBytes);
  const std::optional<std::int64_t> address = driver_->allocate(segment_bytes);
  if (!address) return false;
  stats_.reserved.add(segment_bytes);
  ++stats_.device_allocs;
  const auto segment_size = static_cast<std::uint32_t>(segment_bytes / kMinBlock);
  Block block{.address = static_cast<std::uint64_t>(*address / kMinBlock), .size = segment_size, .pool = request.pool};
  note_segment(block, true);
  const std::uint32_t left = segment_size - size;
  const bool splits = left > (is_small ? 0 : kMostSmall);
  FreeBuckets& free = pools_[request.pool];
  if (splits) block.size = size;
  block.bucket = free.bucket_of(block.size);
  const std::uint32_t number = add_block(block);
  if (splits) {
    const std::uint32_t rest = add_block({.address = block.address + size,
                                          .size = left,
                                          .previous = number,
                                          .pool = request.pool,
                                          .bucket = free.bucket_of(left)});
    blocks_[number].next = rest;
    insert(free, rest);
  }
  hand_out(request.id, number);
  return stats_.reserved.current < below_bytes_;
}

/// As CachingAllocator::note_tie.
void UnlimitedReplay::note_tie(const FreeBuckets& free, std::uint8_t bucket) {
  if (!free.is_tied(bucket)) return;
  free.visit_tied(bucket, [&](std::uint32_t number) {
    const Block& block = blocks_[number];
    if (block.previous != kNone || block.next != kNone) placement_mattered_ = true;
  });
}

[[gnu::always_inline]] inline void UnlimitedReplay::release(std::uint32_t id) {
  const std::uint32_t number = owned_[id];
  if (number == kNone) return;
  owned_[id] = kNone;
  allocated_ -= blocks_[number].size;
  join_pool(number);
}

/// A block joins its free neighbours: the one before it, or else the one behind it, becomes all of them.
[[gnu::always_inline]] inline void UnlimitedReplay::join_pool(std::uint32_t number) {
  Block& block = blocks_[number];
  FreeBuckets& free = pools_[block.pool];
  const std::uint32_t previous = block.previous, next = block.next;
  const bool joins_next = next != kNone && blocks_[next].is_free;
  if (previous != kNone && blocks_[previous].is_free) {
    Block& before = blocks_[previous];
    const FreeBuckets::Key key = key_of(previous);
    before.size += block.size;
    before.next = next;
    if (joins_next) {
      const Block& after = blocks_[next];
      free.erase(after.bucket, key_of(next));
      before.size += after.size;
      before.next = after.next;
      blocks_[next].size = 0;
      unused_.push_back(next);
    }
    if (before.next != kNone) blocks_[before.next].previous = previous;
    move(free, previous, before.bucket, key);
  } else if (joins_next) {
    Block& after = blocks_[next];
    const FreeBuckets::Key key = key_of(next);
    after.size += block.size;
    after.address = block.address;
    after.previous = previous;
    if (previous != kNone) blocks_[previous].next = next;
    move(free, next, after.bucket, key);
  } else {
    insert(free, number);
    return;
  }
  block.size = 0;
  unused_.push_back(number);
}

/// What the block would have: it is split, and joined again.
bool UnlimitedReplay::begin_pair(const Request& request) {
  FreeBuckets& free = pools_[request.pool];
  const std::uint8_t bucket = free.filled_from(request.size);
  if (bucket == 0 || owned_[request.id] != kNone) return allocate(request);
  if (!placement_mattered_) note_tie(free, bucket);
  const std::uint32_t size = free.size(request.size), found = FreeBuckets::size_of(free.first(bucket));
  const std::uint32_t most_left = CompactLedger::is_small(request.pool) ? 0 : kMostSmall;
  in_pair_[request.pool] = found - size <= most_left ? found : size;
  allocated_ += in_pair_[request.pool];
  return true;
}

void UnlimitedReplay::end_pair(const Request& request) {
  if (owned_[request.id] != kNone) return release(request.id);
  allocated_ -= in_pair_[request.pool];
}

/// All segments that are free as a whole go back.
void UnlimitedReplay::empty_cache() {
  for (std::uint32_t number = 0; number < blocks_.size(); ++number) {
    Block& block = blocks_[number];
    if (block.size == 0 || !block.is_free || block.previous != kNone || block.next != kNone) continue;
    const std::int64_t bytes = block.size * kMinBlock;
    driver_->free(static_cast<std::int64_t>(block.address) * kMinBlock, bytes);
    ++stats_.device_frees;
    stats_.reserved.add(-bytes);
    note_segment(block, false);
    pools_[block.pool].erase(block.bucket, key_of(number));
    block.size = 0;
    unused_.push_back(number);
  }
}

template <bool is_only_small>
bool UnlimitedReplay::play(std::size_t begin, std::size_t end, Most& most) {
  std::int64_t highest = -1;
  const Request* at = nullptr;
  const Request* const first = ledger_->requests.data();
  for (const Request* request = first + begin; request != first + end; ++request) {
    if (is_only_small && !CompactLedger::is_small(request->pool)) continue;
    if (request->what == Request::What::free) {
      release(request->id);
      continue;
    }
    if (request->what == Request::What::end_of_pair) {
      end_pair(*request);
      continue;
    }
    if (request->what == Request::What::malloc ? !allocate(*request) : !begin_pair(*request)) return false;
    if (allocated_ > highest) {
      highest = allocated_;
      at = request;
    }
  }
  if (at != nullptr) {
    most.allocated = highest * kMinBlock;
    most.position = static_cast<std::size_t>(at - first);
  }
  return true;
}

UnlimitedReplay::Most UnlimitedReplay::play(const CompactLedger::Run& run) {
  Most most;
  if (ledger_->requests[run.begin].what == Request::What::empty_cache) {
    empty_cache();
    most.is_played = true;
    return most;
  }
  if (!only_small_) large_blocks_.reset();
  most.is_played = only_small_ ? play<true>(run.begin, run.end, most) : play<false>(run.begin, run.end, most);
  if (run.allocates) {
    stats_.requested.peak = std::max(stats_.requested.peak, stats_.requested.current + run.most_bytes);
    stats_.allocated.peak = std::max(stats_.allocated.peak, most.allocated);
  }
  stats_.requested.current += run.change_bytes;
  return most;
}

void UnlimitedReplay::free(const Event& event) {
  large_blocks_.reset();
  release(static_cast<std::uint32_t>(event.id));
  stats_.requested.current += event.bytes;
}

AllocatorStats UnlimitedReplay::stats() const {
  AllocatorStats stats = stats_;
  stats.allocated.current = allocated_ * kMinBlock;
  stats.active = stats.allocated;
  return stats;
}

void UnlimitedReplay::swap(std::int64_t found, std::int64_t made) {
  const auto a = static_cast<std::size_t>(found), b = static_cast<std::size_t>(made);
  if (only_small_ && owned_[a] != kNone) return;
  if (!only_small_) large_blocks_.reset();
  std::swap(owned_[a], owned_[b]);
  for (const std::size_t id : {a, b}) {
    if (owned_[id] != kNone) blocks_[owned_[id]].owner = static_cast<std::uint32_t>(id);
  }
}

void UnlimitedReplay::note_segment(const Block& block, bool is_new) {
  constexpr std::uint64_t kOfPlace = 0x9E3779B97F4A7C15, kOfSize = 0xC2B2AE3D27D4EB4F;
  constexpr unsigned kAboveSize = 48;
  const std::uint64_t own =
      mix_bits(block.address * kOfPlace + (block.size | std::uint64_t{block.pool} << kAboveSize) * kOfSize);
  (CompactLedger::is_small(block.pool) ? segments_.small : segments_.large) += is_new ? own : 0 - own;
}

/// Of allocated blocks.
template <bool is_only_small>
ReplayState UnlimitedReplay::blocks_state() const {
  constexpr std::uint64_t kOfSize = 0xC2B2AE3D27D4EB4F;
  ReplayState state;
  for (const Block& block : blocks_) {
    if (is_only_small && !CompactLedger::is_small(block.pool)) continue;
    if (block.size == 0 || block.is_free) continue;
    (CompactLedger::is_small(block.pool) ? state.small : state.large) +=
        (block.address + block.size * kOfSize) * ledger_->words[block.owner];
  }
  return state;
}

/// Segments with the places and owners of all allocated blocks: free neighbours are always joined.
ReplayState UnlimitedReplay::state() {
  ReplayState state = large_blocks_ ? blocks_state<true>() : blocks_state<false>();
  if (!large_blocks_) large_blocks_ = state.large;
  state.large = *large_blocks_ + segments_.large + driver_->state();
  state.small += segments_.small;
  return state;
}

void UnlimitedReplay::repeat_up_to(const UnlimitedReplay& end, const AllocatorStats& then) {
  const AllocatorStats now = stats();
  const bool mattered = placement_mattered_;
  *this = end;
  placement_mattered_ = placement_mattered_ || mattered;
  for (PeakedSum AllocatorStats::*const sum :
       {&AllocatorStats::requested, &AllocatorStats::allocated, &AllocatorStats::reserved}) {
    (stats_.*sum).peak = std::max((stats_.*sum).peak, (now.*sum).peak);
  }
  stats_.device_allocs += now.device_allocs - then.device_allocs;
  stats_.device_frees += now.device_frees - then.device_frees;
}

}  // namespace vramfit
