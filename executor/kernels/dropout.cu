// Dropout of an adapter's input, in one pass. A thread has packs of elements; which are kept is a hash of where they
// are.
#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"
#include "executor/training/counter_random.h"

namespace vramfit::cuda {

namespace {

constexpr int kElements = 8;

template <typename T>
__global__ void drop_elements(DroppedElements dropped, bool is_aligned) {
  const T* const from = static_cast<const T*>(dropped.from);
  T* const to = static_cast<T*>(dropped.to);
  each_part<kElements>(dropped.elements, is_aligned, [&](const Part<kElements>& part) {
    Pack<T, kElements> pack = part.read(from);
    for (int i = 0; i < kElements; ++i) {
      const std::uint64_t word = random_word(dropped.key, static_cast<std::uint64_t>(dropped.first + part.begin + i));
      const float factor = is_kept(word, dropped.threshold) ? dropped.scale : 0.0F;
      pack.at[i] = rounded<T>(to_float(pack.at[i]) * factor);  // not finite stays so
    }
    part.write(to, pack);
  });
}

}  // namespace

int drop(const DroppedElements& dropped, Stream stream) {
  const std::int64_t threads = (dropped.elements + kElements - 1) / kElements;
  return with_number(dropped.number, [&](auto number) {
    using T = decltype(number);
    const bool is_aligned = begins_with_pack<kElements>(static_cast<const T*>(dropped.from)) &&
                            begins_with_pack<kElements>(static_cast<const T*>(dropped.to));
    return launch(drop_elements<T>, blocks_for(threads), kThreads, stream, dropped, is_aligned);
  });
}

}  // namespace vramfit::cuda
