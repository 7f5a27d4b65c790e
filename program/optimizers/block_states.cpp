#include "program/optimizers/block_states.h"

namespace vramfit {

std::int64_t adamw_scratch(const UnitUpdate& update, std::int64_t block, int rows) {
  if (update.device == DeviceKind::cpu || wants_own_kernel(update)) return 0;
  return BlockScratch{.elements = update.elements, .block = block, .rows = rows}.size();
}

Work work_of_block_adamw(const UnitUpdate& update, std::int64_t block, std::int64_t codes_per_byte) {
  const auto elements = static_cast<double>(update.elements);
  const auto parameter = static_cast<double>(dtype_bytes(update.storage).n);
  const auto gradient = static_cast<double>(dtype_bytes(update.gradient).n);
  if (update.device == DeviceKind::cpu || wants_own_kernel(update)) {
    // Codes and scales of two averages are read and written. A kernel before it counts the update.
    const double states = 4.0 / static_cast<double>(codes_per_byte) + 16.0 / static_cast<double>(block);
    return {.launches = wants_own_kernel(update) ? 2 : 1, .bytes = elements * (gradient + 2 * parameter + states)};
  }
  // Of each element, in fp32 but for codes, gradient and parameter: codes to values, the averages, what parameters
  // lose, values to codes. Packing two codes into a byte moves every index once more.
  constexpr double kBytes = 240, kPackedBytes = 24;
  constexpr std::int64_t kFirst = 13, kOfChunk = 36, kPackedOfChunk = 4;  // launches
  const bool is_packed = codes_per_byte > 1;
  const std::int64_t chunks = ceil_div(update.elements, kBlockStatesChunk);
  return {.launches = kFirst + chunks * (kOfChunk + (is_packed ? kPackedOfChunk : 0)),
          .bytes = elements * (kBytes + (is_packed ? kPackedBytes : 0) + gradient + 2 * parameter)};
}

Work work_of_adamw_at_once(const UnitUpdate& update) {
  const Bytes each = dtype_bytes(update.gradient) + 2 * dtype_bytes(update.storage) + 4 * dtype_bytes(update.state);
  return {.launches = 2, .bytes = static_cast<double>((update.elements * each).n)};
}

Work work_of_adamw_in_chunks(const UnitUpdate& update) {
  constexpr std::int64_t kFirst = 12, kOfChunk = 19;  // launches
  const Bytes fp32{140};                              // the averages, the gradient and what parameters lose, in fp32
  const Bytes each =
      fp32 + dtype_bytes(update.gradient) + 2 * dtype_bytes(update.storage) + 4 * dtype_bytes(update.state);
  return {.launches = kFirst + ceil_div(update.elements, kBlockStatesChunk) * kOfChunk,
          .bytes = static_cast<double>((update.elements * each).n)};
}

}  // namespace vramfit
