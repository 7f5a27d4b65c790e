#include "estimator/allocator/caching_allocator.h"

#include <algorithm>
#include <bit>

namespace vramfit {

namespace {

constexpr std::int64_t kSmallSegment = std::int64_t{2} << 20;
constexpr std::int64_t kExabyte = std::int64_t{1} << 60;      // CUDACachingAllocator.cpp, allocate(): refused unasked
constexpr std::int64_t kOwnSegment = std::int64_t{10} << 20;  // requests of at least this size get their own segment

}  // namespace

CachingAllocator::CachingAllocator(const AllocatorSettings& settings, Driver& driver) : driver_(&driver) {
  set_settings(settings);
  set_memory_fraction(settings.memory_fraction);
}

void CachingAllocator::set_settings(const AllocatorSettings& settings) {
  settings_ = settings;
  rounds_to_divisions_ = std::ranges::any_of(settings.roundup_divisions, [](std::int64_t d) { return d > 1; });
  find_whole_large();
}

void CachingAllocator::set_memory_fraction(double fraction) {
  allowed_.reset();
  if (fraction < 1) allowed_ = static_cast<std::int64_t>(fraction * static_cast<double>(driver_->total()));
  find_whole_large();
}

void CachingAllocator::reset_peaks() {
  for (PeakedSum* sum : {&stats_.requested, &stats_.allocated, &stats_.active, &stats_.reserved}) {
    sum->peak = sum->current;
  }
}

CachingAllocator::Pool& CachingAllocator::pool(int stream, bool is_small) {
  return pools_[static_cast<std::size_t>(stream)][is_small ? 1 : 0];
}

int CachingAllocator::add_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<int>(blocks_.size()) - 1;
  }
  const int number = unused_.back();
  unused_.pop_back();
  at(number) = block;
  return number;
}

int CachingAllocator::add_behind(int before, std::int64_t address, std::int64_t size) {
  const Block& b = at(before);
  const int after = b.next;
  const Block made{.address = address,
                   .size = size,
                   .previous = before,
                   .next = b.next,
                   .range = b.range,
                   .stream = b.stream,
                   .is_small = b.is_small};
  const int number = add_block(made);
  if (after >= 0) at(after).previous = number;
  at(before).next = number;
  return number;
}

inline CachingAllocator::Request CachingAllocator::request_for(std::int64_t bytes, int stream) const {
  const std::int64_t size = rounded(bytes);
  return {.size = size, .stream = stream, .is_small = size <= kMostSmall};
}

/// Of a new segment.
std::int64_t CachingAllocator::segment_size(const Request& request) const {
  if (request.is_small) return kSmallSegment;
  if (request.size < kOwnSegment) return settings_.large_segment.n;
  return ceil_div(request.size, kSmallSegment) * kSmallSegment;
}

int CachingAllocator::malloc(std::int64_t bytes, int stream) {
  if (static_cast<std::size_t>(stream) >= pools_.size()) pools_.resize(static_cast<std::size_t>(stream) + 1);
  if (bytes >= kExabyte) return kOutOfMemory;
  if (waiting_ > 0) process_events();
  const Request request = request_for(bytes, stream);
  int block = take_free_block(request);
  if (block < 0) {
    if (collects_garbage()) collect_garbage();
    block = new_block(request, false);
    if (block < 0 && release_available(request)) block = new_block(request, false);
    if (block < 0 && release_cached()) block = new_block(request, true);
    if (block < 0) {
      ++stats_.ooms;
      return kOutOfMemory;
    }
    if (const int rest = split(block, request); rest >= 0) insert_free(rest);
  }
  hand_out(at(block), bytes);
  return block;
}

/// The smallest block that fits, ties by address. What an expandable block's end could grow to counts as its size.
inline FreeBlocks::Place CachingAllocator::best_fit(const FreeBlocks& free, const Request& request) const {
  FreeBlocks::Place place = free.lower_bound(request.size);
  if (place.is_end()) return place;
  const auto block_at = [&](FreeBlocks::Place there) -> const Block& { return at(free.at(there).block); };
  if (block_at(place).range < 0) return place;
  if (settings_.expandable_segments) {
    for (const Block* best = &block_at(place); best->range >= 0; best = &block_at(place)) {
      const std::int64_t grown = grown_size(*best);
      if (grown == best->size) break;  // no later one is smaller
      const FreeBlocks::Place next = free.next(place);
      if (next.is_end() || grown_size(block_at(next)) >= grown) break;
      place = next;
    }
    return place;
  }
  // Expandable segments were switched off: their blocks are left alone.
  while (!place.is_end() && block_at(place).range >= 0) place = free.next(place);
  return place;
}

/// What the request leaves of the best fit stays free in its place.
inline int CachingAllocator::take_free_block(const Request& request) {
  if (collects_garbage()) ++searches_[request.is_small ? 1 : 0];
  FreeBlocks& free = pool(request.stream, request.is_small).free;
  const FreeBlocks::Place place = best_fit(free, request);
  if (place.is_end()) return -1;
  const FreeBlocks::Entry entry = free.at(place);
  if (request.size < settings_.max_split.n) {
    if (entry.size >= settings_.max_split.n) return -1;
  } else if (entry.size - settings_.max_non_split_rounding.n >= request.size) {
    return -1;
  }
  if (!placement_mattered_) note_tie(free, place);
  const int block = entry.block;
  if (collects_garbage() && is_whole_large(at(block))) whole_large_.erase(block);
  if (const int rest = split(block, request); rest >= 0) {
    insert_free(rest, free, place);
  } else {
    free.erase(place);
  }
  return block;
}

/// Blocks of equal size are chosen by address. Among whole segments the choice makes no difference, because what
/// remains is the same apart from addresses. With a split-size limit or garbage collection, every choice counts as a
/// difference.
inline void CachingAllocator::note_tie(const FreeBlocks& free, FreeBlocks::Place chosen) {
  if (settings_.expandable_segments) return;
  placement_mattered_ = settings_.max_split != kUnlimited || collects_garbage();
  const std::int64_t size = free.at(chosen).size;
  FreeBlocks::Place place = free.next(chosen);
  if (place.is_end() || free.at(place).size != size) return;
  for (place = chosen; !place.is_end() && free.at(place).size == size; place = free.next(place)) {
    const Block& b = at(free.at(place).block);
    if (b.previous >= 0 || b.next >= 0) placement_mattered_ = true;
  }
}

int CachingAllocator::new_block(const Request& request, bool is_retry) {
  if (is_retry) ++stats_.alloc_retries;
  if (allowed_ && held_ + segment_size(request) > *allowed_) return -1;
  return settings_.expandable_segments ? grow_range(request) : new_segment(request);
}

int CachingAllocator::new_segment(const Request& request) {
  const std::int64_t size = segment_size(request);
  const std::optional<std::int64_t> address = driver_->allocate(size);
  if (!address) return -1;
  held_ += size;
  stats_.reserved.add(size);
  ++stats_.device_allocs;
  const Block made{.address = *address,
                   .size = size,
                   .stream = static_cast<std::uint8_t>(request.stream),
                   .is_small = request.is_small};
  note_segment(made, true);
  return add_block(made);
}

/// Cuts off what is more than the request, if that is worth it: the rest, which is in no set yet, or -1.
inline int CachingAllocator::split(int block, const Request& request) {
  const std::int64_t left = at(block).size - request.size;
  const bool splits = request.is_small || settings_.expandable_segments
                          ? left >= kMinBlock
                          : request.size < settings_.max_split.n && left > kMostSmall;
  if (!splits) return -1;
  at(block).size = request.size;
  return add_behind(block, at(block).address + request.size, left);
}

inline void CachingAllocator::hand_out(Block& block, std::int64_t bytes) {
  block.is_allocated = true;
  block.requested = bytes;
  stats_.allocated.add(block.size);
  stats_.active.add(block.size);
  stats_.requested.add(bytes);
}

void CachingAllocator::free(int block) {
  Block& b = at(block);
  b.is_allocated = false;
  stats_.allocated.add(-b.size);
  if (b.other_streams != 0) {
    insert_events(block);
  } else {
    release_to_pool(block);
  }
}

void CachingAllocator::record_stream(int block, int stream) {
  Block& b = at(block);
  if (stream != b.stream) b.other_streams |= std::uint64_t{1} << static_cast<unsigned>(stream);
}

inline void CachingAllocator::insert_free(int block, FreeBlocks& free, FreeBlocks::Place place) {
  Block& b = at(block);
  b.free_since = searches_[b.is_small ? 1 : 0];
  const FreeBlocks::Entry entry{.size = b.size, .address = b.address, .block = block};
  if (place.is_end()) {
    free.insert(entry);
  } else {
    free.replace(place, entry);
  }
  if (collects_garbage() && is_whole_large(b)) whole_large_.insert(block);
}

void CachingAllocator::insert_free(int block) { insert_free(block, pool_of(at(block)).free, FreeBlocks::kNowhere); }

void CachingAllocator::erase_free(int block) {
  const Block& b = at(block);
  pool_of(b).free.erase(b.size, b.address);
  if (collects_garbage() && is_whole_large(b)) whole_large_.erase(block);
}

/// A block that nobody uses any more joins its free neighbours, and takes the place of one of them in the pool.
void CachingAllocator::release_to_pool(int block) {
  Block& b = at(block);
  stats_.active.add(-b.size);
  stats_.requested.add(-b.requested);
  FreeBlocks& free = pool_of(b).free;
  FreeBlocks::Place taken = FreeBlocks::kNowhere;
  for (const int neighbour : {b.previous, b.next}) {
    if (!can_merge(b, neighbour)) continue;
    if (!taken.is_end()) free.erase(taken);
    taken = free.find(at(neighbour).size, at(neighbour).address);
    join(block, neighbour);
  }
  insert_free(block, free, taken);
}

inline bool CachingAllocator::can_merge(const Block& block, int neighbour) const {
  if (neighbour < 0) return false;
  const Block& n = at(neighbour);
  return !n.is_allocated && n.events == 0 && n.other_streams == 0 && n.is_mapped == block.is_mapped;
}

/// Merges a neighbour into the block if it is free, or unmapped, like the block. The block itself is in no set.
bool CachingAllocator::merge(int block, int neighbour) {
  if (!can_merge(at(block), neighbour)) return false;
  if (at(neighbour).is_mapped) {
    erase_free(neighbour);
  } else {
    erase_unmapped(neighbour);
  }
  join(block, neighbour);
  return true;
}

/// The neighbour, which is in no set any more, becomes part of the block.
inline void CachingAllocator::join(int block, int neighbour) {
  Block& b = at(block);
  const Block& n = at(neighbour);
  if (b.previous == neighbour) {
    b.address = n.address;
    b.previous = n.previous;
    if (b.previous >= 0) at(b.previous).next = block;
  } else {
    b.next = n.next;
    if (b.next >= 0) at(b.next).previous = block;
  }
  b.size += n.size;
  remove_block(neighbour);
}

void CachingAllocator::insert_events(int block) {
  Block& b = at(block);
  const std::uint64_t streams = b.other_streams;
  b.other_streams = 0;
  if (events_.size() < kStreams) events_.resize(kStreams);
  for (std::uint64_t left = streams; left != 0; left &= left - 1) {
    StreamEvents& events = events_[static_cast<std::size_t>(std::countr_zero(left))];
    events.waiting.push_back({.event = events.recorded++, .block = block});
    ++b.events;
    ++waiting_;
  }
}

void CachingAllocator::finish_event(int block) {
  --waiting_;
  if (--at(block).events == 0) release_to_pool(block);
}

/// Each stream's events are asked in order, up to the first that is not complete.
void CachingAllocator::process_events() {
  for (int stream = 0; stream < kStreams; ++stream) {
    std::deque<Waiting>& waiting = events_[static_cast<std::size_t>(stream)].waiting;
    while (!waiting.empty() && driver_->event_complete(stream, waiting.front().event)) {
      const int block = waiting.front().block;
      waiting.pop_front();
      finish_event(block);
    }
  }
}

void CachingAllocator::synchronize_events() {
  ++stats_.sync_all_streams;
  for (StreamEvents& events : events_) {
    for (const Waiting& waiting : events.waiting) finish_event(waiting.block);
    events.waiting.clear();
  }
}

}  // namespace vramfit
