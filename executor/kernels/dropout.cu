// Dropout of an adapter's input, in one pass. A thread has packs of elements; which are kept is a hash of where they
// are.
#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"
#include "executor/training/counter_random.h"

namespace vramfit::cuda {

namespace {

constexpr int kElements = 8;
constexpr int kProbabilityBits = 53;  // of a word, compared with the threshold

template <typename T>
__global__ void drop_elements(DroppedElements dropped) {
  const T* const from = static_cast<const T*>(dropped.from);
  T* const to = static_cast<T*>(dropped.to);
  const bool is_aligned =
      (reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % alignof(Pack<T, kElements>) ==
      0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kElements;
  for (std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kElements;
       begin < dropped.elements; begin += step) {
    const Part<kElements> part{begin, dropped.elements - begin, is_aligned};
    Pack<T, kElements> pack = part.read(from);
    for (int i = 0; i < kElements; ++i) {
      const std::uint64_t word = random_word(dropped.key, static_cast<std::uint64_t>(dropped.first + begin + i));
      const float factor = (word >> (64 - kProbabilityBits)) < dropped.threshold ? dropped.scale : 0.0F;
      pack.at[i] = rounded<T>(to_float(pack.at[i]) * factor);  // not finite stays so
    }
    part.write(to, pack);
  }
}

}  // namespace

int drop(const DroppedElements& dropped, Stream stream) {
  const std::int64_t threads = (dropped.elements + kElements - 1) / kElements;
  return with_number(dropped.number, [&](auto number) {
    return launch(drop_elements<decltype(number)>, blocks_for(threads), kThreads, stream, dropped);
  });
}

}  // namespace vramfit::cuda
