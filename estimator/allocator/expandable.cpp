// Expandable segments: a range of addresses for each stream and pool, mapped page by page from its lowest free address.
#include <algorithm>

#include "estimator/allocator/caching_allocator.h"

namespace vramfit {

namespace {
constexpr std::int64_t kSmallPage = std::int64_t{2} << 20;
}

bool CachingAllocator::is_allocatable(int block) const {
  if (block < 0) return false;
  const Block& b = at(block);
  return !b.is_allocated && b.events == 0 && b.other_streams == 0;
}

/// The lowest run of free and unmapped blocks with room for the request, else a new range.
int CachingAllocator::find_growable(const Request& request) {
  for (const int unmapped : pool(request.stream, request.is_small).unmapped) {
    const int previous = at(unmapped).previous;
    const int first = is_allocatable(previous) ? previous : unmapped;
    std::int64_t room = 0;
    for (int block = first; room < request.size && is_allocatable(block); block = at(block).next) {
      room += at(block).size;
    }
    if (room >= request.size) return first;
  }
  const std::int64_t page = request.is_small ? kSmallPage : settings_.large_segment.n;
  Range range{.address = 0, .size = 0, .page = page};
  // An eighth more than the card holds, so that pages can move to the end.
  range.size = ceil_div(driver_->total() + driver_->total() / 8, page) * page;
  range.address = driver_->reserve(range.size);
  ranges_.push_back(range);
  const int block = add_block({.address = range.address,
                               .size = range.size,
                               .range = static_cast<int>(ranges_.size()) - 1,
                               .stream = static_cast<std::uint8_t>(request.stream),
                               .is_small = request.is_small,
                               .is_mapped = false});
  insert_unmapped(block);
  return block;
}

/// If the card becomes full halfway, the part that was mapped stays as a free block.
int CachingAllocator::grow_range(const Request& request) {
  int block = find_growable(request);
  if (!at(block).is_mapped && !map(block, std::min(at(block).size, request.size))) return -1;
  while (at(block).size < request.size) {
    const int next = at(block).next;
    if (next < 0) return -1;  // more than the card can hold
    if (!map(next, std::min(request.size - at(block).size, at(next).size))) return -1;
    block = next;  // the mapped block takes in the one before it
  }
  erase_free(block);
  return block;
}

/// Maps whole pages from the start of an unmapped block; they become a free block, with free neighbours.
bool CachingAllocator::map(int block, std::int64_t size) {
  const std::int64_t page = ranges_[static_cast<std::size_t>(at(block).range)].page;
  const std::int64_t pages = ceil_div(size, page), mapped = pages * page;
  if (!driver_->create_pages(pages, page)) return false;
  erase_unmapped(block);
  const std::int64_t left = at(block).size - mapped;
  at(block).is_mapped = true;
  at(block).size = mapped;
  if (left > 0) {
    const int rest = add_behind(block, at(block).address + mapped, left);
    at(rest).is_mapped = false;
    insert_unmapped(rest);
  }
  merge(block, at(block).previous);
  merge(block, at(block).next);
  insert_free(block);
  held_ += mapped;
  stats_.reserved.add(mapped);
  ++stats_.device_allocs;
  return true;
}

/// Unmaps the whole pages inside a free block; the parts before and after them stay free.
void CachingAllocator::unmap(int block) {
  const Block b = at(block);
  const Range& range = ranges_[static_cast<std::size_t>(b.range)];
  const std::int64_t offset = b.address - range.address;
  const std::int64_t first = ceil_div(offset, range.page), last = (offset + b.size) / range.page;
  if (first >= last) return;
  driver_->release_pages(last - first, range.page);
  erase_free(block);
  const std::int64_t start = range.address + first * range.page, size = (last - first) * range.page;
  const std::int64_t before = start - b.address, after = b.size - before - size;
  at(block).size = size;
  at(block).address = start;
  if (after > 0) insert_free(add_behind(block, start + size, after));
  if (before > 0) {
    const int head = add_block({.address = b.address,
                                .size = before,
                                .previous = b.previous,
                                .next = block,
                                .range = b.range,
                                .stream = b.stream,
                                .is_small = b.is_small});
    if (b.previous >= 0) at(b.previous).next = head;
    at(block).previous = head;
    insert_free(head);
  }
  at(block).is_mapped = false;
  merge(block, at(block).previous);
  merge(block, at(block).next);
  insert_unmapped(block);
  held_ -= size;
  stats_.reserved.add(-size);
  ++stats_.device_frees;
  if (at(block).previous < 0 && at(block).next < 0) release_range(block);
}

void CachingAllocator::release_range(int block) {
  const Block& b = at(block);
  driver_->unreserve(b.address, b.size);
  erase_unmapped(block);
  remove_block(block);
}

void CachingAllocator::insert_unmapped(int block) {
  std::vector<int>& unmapped = pool_of(at(block)).unmapped;
  const auto place = std::ranges::lower_bound(unmapped, at(block).address, {}, [&](int b) { return at(b).address; });
  unmapped.insert(place, block);
}

void CachingAllocator::erase_unmapped(int block) { std::erase(pool_of(at(block)).unmapped, block); }

}  // namespace vramfit
