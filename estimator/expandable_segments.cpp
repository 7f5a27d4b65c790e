#include "estimator/expandable_segments.h"

#include <algorithm>

namespace vramfit {

namespace {
constexpr Bytes kBlock{512};
constexpr Bytes kMostSmall = kMiB;

std::size_t at(int number) { return static_cast<std::size_t>(number); }
}  // namespace

Bytes allocated_block(Bytes requested) { return round_up(std::max(requested, Bytes{1}), kBlock); }

void ExpandableSegments::allocate(std::int64_t id, Bytes requested) {
  const Bytes size = allocated_block(requested);
  const int pool = size <= kMostSmall ? 0 : 1;
  const int block = take(pools_[at(pool)], size.n);
  if (places_.size() <= static_cast<std::size_t>(id)) places_.resize(static_cast<std::size_t>(id) + 1, {-1, -1});
  places_[static_cast<std::size_t>(id)] = {pool, block};
}

void ExpandableSegments::free(std::int64_t id) {
  const auto [pool_number, number] = places_[static_cast<std::size_t>(id)];
  Pool& pool = pools_[at(pool_number)];
  int block = number;
  const int next = pool.blocks[at(block)].next;
  if (next >= 0 && pool.blocks[at(next)].is_free) {
    set_used(pool, next);
    merge_with_next(pool, block);
  }
  const int previous = pool.blocks[at(block)].previous;
  if (previous >= 0 && pool.blocks[at(previous)].is_free) {
    set_used(pool, previous);
    merge_with_next(pool, previous);
    block = previous;
  }
  set_free(pool, block);
}

int ExpandableSegments::take(Pool& pool, std::int64_t size) {
  auto best = pool.free.lower_bound({size, {-1, -1}});
  // The block at the end could grow; any other block that fits is preferred.
  if (best != pool.free.end() && best->second.second == pool.last && std::next(best) != pool.free.end()) ++best;
  const int number = best != pool.free.end() ? best->second.second : grow(pool, size);
  set_used(pool, number);
  if (pool.blocks[at(number)].size - size >= kBlock.n) split(pool, number, size);
  return number;
}

/// Maps pages until the free block at the end (or a new one) holds `size`.
int ExpandableSegments::grow(Pool& pool, std::int64_t size) {
  const bool extends = pool.last >= 0 && pool.blocks[at(pool.last)].is_free;
  const std::int64_t missing = extends ? size - pool.blocks[at(pool.last)].size : size;
  const std::int64_t mapped = round_up(missing, pool.page);
  reserved_ += Bytes{mapped};
  if (extends) {
    set_used(pool, pool.last);
    pool.blocks[at(pool.last)].size += mapped;
    set_free(pool, pool.last);
    return pool.last;
  }
  Block block{.address = 0, .size = mapped, .previous = pool.last};
  if (pool.last >= 0) block.address = pool.blocks[at(pool.last)].address + pool.blocks[at(pool.last)].size;
  const int number = add_block(pool, block);
  if (pool.last >= 0) pool.blocks[at(pool.last)].next = number;
  pool.last = number;
  set_free(pool, number);
  return number;
}

int ExpandableSegments::add_block(Pool& pool, const Block& block) {
  if (pool.unused.empty()) {
    pool.blocks.push_back(block);
    return static_cast<int>(pool.blocks.size()) - 1;
  }
  const int number = pool.unused.back();
  pool.unused.pop_back();
  pool.blocks[at(number)] = block;
  return number;
}

void ExpandableSegments::set_free(Pool& pool, int number) {
  Block& block = pool.blocks[at(number)];
  block.is_free = true;
  pool.free.insert({block.size, {block.address, number}});
}

void ExpandableSegments::set_used(Pool& pool, int number) {
  Block& block = pool.blocks[at(number)];
  block.is_free = false;
  pool.free.erase({block.size, {block.address, number}});
}

/// Keeps `size` bytes at the low end and frees the rest.
void ExpandableSegments::split(Pool& pool, int number, std::int64_t size) {
  const Block whole = pool.blocks[at(number)];
  const int rest = add_block(
      pool, {.address = whole.address + size, .size = whole.size - size, .previous = number, .next = whole.next});
  if (whole.next >= 0) pool.blocks[at(whole.next)].previous = rest;
  pool.blocks[at(number)].next = rest;
  pool.blocks[at(number)].size = size;
  if (pool.last == number) pool.last = rest;
  set_free(pool, rest);
}

void ExpandableSegments::merge_with_next(Pool& pool, int number) {
  Block& block = pool.blocks[at(number)];
  const int gone = block.next;
  block.size += pool.blocks[at(gone)].size;
  block.next = pool.blocks[at(gone)].next;
  if (block.next >= 0) pool.blocks[at(block.next)].previous = number;
  if (pool.last == gone) pool.last = number;
  pool.unused.push_back(gone);
}

}  // namespace vramfit
