#include "job/cluster/reduce_scratch.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"

namespace vramfit {

namespace {

constexpr std::int64_t kThreads = 512, kWarp = 32;            // of a block, at most; that run in step
constexpr std::int64_t kLeastValues = 16, kMostValues = 256;  // of a thread
constexpr std::int64_t kVector = 4, kLeastVectorized = 128;   // elements loaded at once; from more inputs than this

struct Reduction {
  std::int64_t inputs = 0;  // of an output
  std::int64_t outputs = 1;
  std::int64_t vector = 1;    // outputs of a thread
  bool is_along_rows = true;  // inputs of an output are neighbours; otherwise outputs are
};

std::int64_t power_of_two_within(std::int64_t n, std::int64_t most) {
  return n < most ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n))) : most;
}

/// A block's threads: `width` along neighbours, `height` across.
struct BlockShape {
  std::int64_t width = 1, height = 1;
};

BlockShape block_of(const Reduction& r) {
  const std::int64_t most = kThreads / r.vector;
  const std::int64_t loads = r.inputs > kLeastVectorized ? r.inputs / kVector : r.inputs;
  const std::int64_t columns = power_of_two_within(r.is_along_rows ? loads : r.outputs / r.vector, most);
  const std::int64_t depth = power_of_two_within(r.is_along_rows ? r.outputs : r.inputs, most);
  const std::int64_t height = std::min(depth, most / std::min(columns, kWarp));
  return {.width = std::min(columns, most / height), .height = height};
}

ReduceScratch scratch_of(const Reduction& r, const Device& device) {
  const BlockShape block = block_of(r);
  const std::int64_t split = r.is_along_rows ? block.width : 1;  // threads that share an output's inputs
  if (ceil_div(r.inputs, split) < std::min(block.height * kLeastValues, kMostValues)) return {};
  const std::int64_t values = ceil_div(r.inputs, split * block.height);
  const std::int64_t columns = r.is_along_rows ? r.outputs : ceil_div(r.outputs / r.vector, block.width);
  const std::int64_t blocks = device.sm_count * (threads_an_sm(device) / (block.width * block.height));
  if (values < kMostValues || columns > blocks) return {};
  const std::int64_t parts =
      std::max(std::min(ceil_div(blocks, columns), ceil_div(values, kLeastValues)), ceil_div(values, kMostValues));
  if (parts <= 1) return {};
  const std::int64_t lanes = r.is_along_rows ? 1 : block.width * r.vector;  // along rows, a block sums up first
  return {.partials = Bytes{4 * r.outputs * parts * lanes}, .counters = Bytes{4 * columns}};
}

}  // namespace

std::vector<std::int64_t> indexed_parts(std::int64_t elements, std::int64_t element_bytes) {
  if (elements <= 1 || checked_mul(elements - 1, element_bytes) < std::numeric_limits<std::int32_t>::max()) {
    return {elements};
  }
  std::vector<std::int64_t> parts = indexed_parts(elements / 2, element_bytes);
  const std::vector<std::int64_t> others = indexed_parts(elements - elements / 2, element_bytes);
  parts.insert(parts.end(), others.begin(), others.end());
  return parts;
}

ReduceScratch sum_over_all(std::int64_t elements, const Device& device) { return sum_of_each_row(1, elements, device); }

ReduceScratch sum_of_each_row(std::int64_t rows, std::int64_t width, const Device& device) {
  if (rows == 0 || width == 0) return {};
  return scratch_of({.inputs = width, .outputs = rows}, device);
}

ReduceScratch sum_over_rows(std::int64_t rows, std::int64_t width, const Device& device, std::int64_t element_bytes) {
  constexpr std::int64_t kMostIndexed = std::int64_t{1} << 31;
  if (checked_mul(checked_mul(rows, width), element_bytes) >= kMostIndexed)
    throw NotModelled("sums over more than 2 GiB");
  std::int64_t vector = kVector;
  while (width % vector != 0) vector /= 2;
  return scratch_of({.inputs = rows, .outputs = width, .vector = vector, .is_along_rows = false}, device);
}

}  // namespace vramfit
