// Work that falls into parts which don't depend on each other, on the processor's cores.
#pragma once

#include <cstddef>
#include <functional>

namespace vramfit {

/// Calls work(0) to work(count - 1), each once, and returns when all have returned. They run on as many threads as the
/// processor has cores, begun in this order; inside another such call on the caller's and on those that have no part of
/// the other call left; where no thread can be started, on the caller's alone. Throws what the first of them threw, by
/// number.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace vramfit
