#include "program/optimizers/fp32_chunks.h"

#include <algorithm>

#include "program/optimizers/block_states.h"

namespace vramfit {

namespace {

/// Numbers of an element that aren't fp32: the gradient, which is read, and those that are written, too.
struct Converted {
  std::int64_t read, updated;
};

Converted converted(const UnitUpdate& update, std::int64_t averages) {
  return {.read = update.gradient == Dtype::f32 ? 0 : 1,
          .updated = (update.storage == Dtype::f32 ? 0 : 1) + (update.state == Dtype::f32 ? 0 : averages)};
}

}  // namespace

std::int64_t fp32_chunks_scratch(const UnitUpdate& update, std::int64_t averages) {
  const auto [read, updated] = converted(update, averages);
  return checked_mul(read + updated, std::min(update.elements, kBlockStatesChunk));
}

Work work_of_fp32_chunks(const UnitUpdate& update, std::int64_t averages, Work (*of_one_dtype)(const UnitUpdate&),
                         std::int64_t once) {
  UnitUpdate in_fp32 = update;
  in_fp32.storage = in_fp32.gradient = in_fp32.state = Dtype::f32;
  const auto [read, updated] = converted(update, averages);
  Work work = of_one_dtype(in_fp32);
  work.launches = once + ceil_div(update.elements, kBlockStatesChunk) * (work.launches - once + read + 2 * updated);
  // Read and written as fp32; what is written, the other way as well.
  Bytes copied = read * (dtype_bytes(update.gradient) + dtype_bytes(Dtype::f32));
  if (update.storage != Dtype::f32) copied += 2 * (dtype_bytes(update.storage) + dtype_bytes(Dtype::f32));
  if (update.state != Dtype::f32) copied += averages * 2 * (dtype_bytes(update.state) + dtype_bytes(Dtype::f32));
  work.bytes += static_cast<double>((update.elements * copied).n);
  return work;
}

}  // namespace vramfit
