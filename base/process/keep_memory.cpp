#include "base/process/keep_memory.h"

#include <cstdlib>  // says whether this is glibc

#ifdef __GLIBC__
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace vramfit {

#ifdef __GLIBC__
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20, kGrowth = std::size_t{32} << 20;  // bytes

/// The heap grows by this much at once. Addresses alone cost nothing; what is touched first comes in large pages, where
/// the kernel gives these on request: a dozen faults instead of thousands.
void grow_in_large_pages() {
  mallopt(M_TOP_PAD, static_cast<int>(kGrowth));
  void* const block = std::malloc(kLargePage);  // more than the heap has left, so it grows now
  const auto begin = (reinterpret_cast<std::uintptr_t>(block) + kLargePage - 1) & ~(kLargePage - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(sbrk(0)) & ~(kLargePage - 1);
  // Not so if another malloc is in the place of glibc's, as under sanitizers.
  const bool is_on_heap = block != nullptr && begin < end && end - begin <= 2 * kGrowth;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address within the heap
  if (is_on_heap) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // refused: small pages do
  std::free(block);
}

bool large_pages_are_wanted = false;

}  // namespace
#endif

void keep_freed_memory() {
#ifdef __GLIBC__
  // Bytes. Larger blocks, such as files that are read, go back at once; this is the most that glibc takes.
  constexpr int kLargestBlock = 1 << 25, kMostKept = 1 << 28;
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, kMostKept);
  grow_in_large_pages();
  large_pages_are_wanted = true;
#endif
}

void ask_for_large_pages_in_thread() {
#ifdef __GLIBC__
  // glibc puts the heap of a thread at a multiple of this, in a range of as much (arena.c: HEAP_MAX_SIZE). What is
  // allocated first lies near its beginning, behind a few KiB of glibc's own. A thread that was given the heap of one
  // that has ended finds more in front of it, and the pages asked for.
  constexpr std::uintptr_t kHeap = std::uintptr_t{64} << 20, kOwn = std::uintptr_t{16} << 10;  // bytes
  if (!large_pages_are_wanted) return;
  void* const block = std::malloc(1);
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  const std::uintptr_t begin = address & ~(kHeap - 1);
  const bool is_on_own_heap = address - begin < kOwn && address > reinterpret_cast<std::uintptr_t>(sbrk(0));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the heap
  if (block != nullptr && is_on_own_heap) madvise(reinterpret_cast<void*>(begin), kHeap, MADV_HUGEPAGE);
  std::free(block);
#endif
}

}  // namespace vramfit
