// How the caching allocator gives memory back to the card, and what a snapshot shows of what it holds.
#include <algorithm>
#include <tuple>

#include "estimator/allocator/caching_allocator.h"

namespace vramfit {

void CachingAllocator::empty_cache() { release_cached(); }

/// The free segments of the large pools that aren't split, of all streams, in the order of the pools.
std::vector<int> CachingAllocator::whole_large_segments() const {
  std::vector<int> blocks(whole_large_.begin(), whole_large_.end());
  std::ranges::sort(blocks, {},
                    [&](int block) { return std::tuple(at(block).stream, at(block).size, at(block).address); });
  return blocks;
}

/// When garbage collection starts, or ends: its blocks are known without looking at all that are free.
void CachingAllocator::find_whole_large() {
  whole_large_.clear();
  if (!collects_garbage()) return;
  for (const auto& pools : pools_) {
    const FreeBlocks& free = pools[0].free;
    for (auto place = free.begin(); !place.is_end(); place = free.next(place)) {
      const int block = free.at(place).block;
      if (is_whole_large(at(block))) whole_large_.insert(block);
    }
  }
}

/// Above the threshold, releases the segments that have been free for longer than the average, and repeats until enough
/// is released.
void CachingAllocator::collect_garbage() {
  const auto threshold =
      static_cast<std::int64_t>(settings_.garbage_collection_threshold * static_cast<double>(*allowed_));
  if (held_ <= threshold) return;
  const std::int64_t target = held_ - threshold;
  const auto age = [&](int block) { return searches_[0] - at(block).free_since; };
  std::vector<int> segments = whole_large_segments();
  std::int64_t total_age = 0, reclaimed = 0;
  for (const int block : segments) total_age += age(block);
  while (reclaimed < target && !segments.empty()) {
    const double average = static_cast<double>(total_age) / static_cast<double>(segments.size());
    const auto goes = [&](int block) { return at(block).range < 0 && static_cast<double>(age(block)) >= average; };
    const auto going = std::stable_partition(segments.begin(), segments.end(), [&](int block) { return !goes(block); });
    if (going == segments.end()) return;
    for (auto block = going; block != segments.end(); ++block) {
      reclaimed += at(*block).size;
      total_age -= age(*block);
      release_block(*block);
    }
    segments.erase(going, segments.end());
  }
}

/// With a split-size limit: releases one unsplittable block that is large enough, or several from the largest down.
bool CachingAllocator::release_available(const Request& request) {
  if (settings_.max_split == kUnlimited) return false;
  FreeBlocks& free = pool(request.stream, request.is_small).free;
  const std::int64_t wanted = std::max(request.size, settings_.max_split.n);
  FreeBlocks::Place place = free.lower_bound(wanted);
  if (!place.is_end() && at(free.at(place).block).range < 0) {
    release_block(free.at(place).block);
    return true;
  }
  std::vector<int> going;
  std::int64_t released = 0;
  const FreeBlocks::Place first = free.begin();
  while (released < wanted && place != first) {
    place = free.previous(place);
    const FreeBlocks::Entry entry = free.at(place);
    if (entry.size < settings_.max_split.n) break;
    if (at(entry.block).range >= 0) continue;
    released += entry.size;
    going.push_back(entry.block);
  }
  for (const int block : going) release_block(block);
  return released >= wanted;
}

bool CachingAllocator::release_cached() {
  synchronize_events();
  for (auto& pools : pools_) release_pool(pools[0]);
  for (auto& pools : pools_) release_pool(pools[1]);
  return true;
}

/// All segments that aren't split, and all whole pages of expandable ones.
void CachingAllocator::release_pool(Pool& pool) {
  std::vector<int> whole, expandable;
  for (auto place = pool.free.begin(); !place.is_end(); place = pool.free.next(place)) {
    const int block = pool.free.at(place).block;
    const Block& b = at(block);
    if (b.range >= 0) {
      expandable.push_back(block);
    } else if (b.previous < 0 && b.next < 0) {
      whole.push_back(block);
    }
  }
  for (const int block : whole) release_block(block);
  for (const int block : expandable) unmap(block);
}

void CachingAllocator::release_block(int block) {
  const Block& b = at(block);
  ++stats_.device_frees;
  driver_->free(b.address, b.size);
  held_ -= b.size;
  stats_.reserved.add(-b.size);
  note_segment(b, false);
  erase_free(block);
  remove_block(block);
}

std::vector<SegmentView> CachingAllocator::segments() const {
  std::vector<SegmentView> segments;
  for (int first = 0; first < static_cast<int>(blocks_.size()); ++first) {
    const Block& head = at(first);
    if (head.size == 0 || !head.is_mapped) continue;
    if (head.previous >= 0 && at(head.previous).is_mapped) continue;
    SegmentView segment{.address = head.address,
                        .size = 0,
                        .stream = head.stream,
                        .is_large = !head.is_small,
                        .is_expandable = head.range >= 0,
                        .blocks = {}};
    for (int block = first; block >= 0 && at(block).is_mapped; block = at(block).next) {
      const Block& b = at(block);
      const bool active = b.is_allocated || b.events > 0 || b.other_streams != 0;
      segment.size += b.size;
      segment.blocks.push_back(
          {.size = b.size, .requested = active ? b.requested : 0, .allocated = b.is_allocated, .active = active});
    }
    segments.push_back(std::move(segment));
  }
  std::ranges::sort(segments, {}, &SegmentView::address);
  return segments;
}

}  // namespace vramfit
