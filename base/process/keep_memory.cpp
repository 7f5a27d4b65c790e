#include "base/process/keep_memory.h"

#include <cstdlib>  // says whether this is glibc

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace vramfit {

void keep_freed_memory() {
#ifdef __GLIBC__
  // Bytes. Larger blocks, such as files that are read, go back at once; this is the most that glibc takes.
  constexpr int kLargestBlock = 1 << 25, kMostKept = 1 << 28;
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, kMostKept);
#endif
}

}  // namespace vramfit
