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

}  // namespace
#endif

void keep_freed_memory() {
#ifdef __GLIBC__
  // Bytes. Larger blocks, such as files that are read, go back at once; this is the most that glibc takes.
  constexpr int kLargestBlock = 1 << 25, kMostKept = 1 << 28;
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, kMostKept);
  grow_in_large_pages();
#endif
}

}  // namespace vramfit
