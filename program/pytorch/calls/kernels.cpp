#include "program/pytorch/calls/kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "program/ops/attention.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kCopyTile = 2048;  // bytes that a thread block copies at a time

/// cub's states of a scan's tiles and a warp's worth more; of 16 bytes each where what is summed has 8 bytes.
Bytes scan_tiles(std::int64_t items, std::int64_t tile, Bytes state = Bytes{16}) {
  return round_up((ceil_div(items, tile) + 32) * state, Bytes{256}) + Bytes{511};
}

/// A tile's size, from this compute capability on.
struct Tile {
  int least_capability;
  std::int64_t items;
};

std::int64_t tile_on(const Device& device, std::span<const Tile> tiles) {
  return std::ranges::find_if(tiles, [&](const Tile& t) { return device.compute_capability >= t.least_capability; })
      ->items;
}

}  // namespace

std::int64_t widest_cudnn_attention(const Device& device) {
  if (device.compute_capability == 90) return 256;
  return device.compute_capability >= 100 && device.compute_capability < 120 ? 128 : 0;
}

std::int64_t widest_cudnn_attention_asked_for(const Device& device) {
  if (device.compute_capability < 80) return 0;
  return std::max(widest_cudnn_attention(device), std::int64_t{128});
}

Bytes efficient_workspace_in_16_bits(std::int64_t heads, std::int64_t sequence, std::int64_t head_dim,
                                     const Device& device) {
  const bool is_large = has_large_blocks(device), is_small = head_dim <= 64, is_middle = !is_small && head_dim <= 128;
  const bool is_before_ampere = device.compute_capability < 80;  // whose kernels keep less in shared memory
  const bool has_own_kernel =
      is_middle && !is_large && device.compute_capability < 90 && (is_before_ampere || head_dim <= 96);
  const std::int64_t queries = is_small || (is_middle && !is_large && !has_own_kernel) ? 64 : 128;
  const std::int64_t columns = is_middle && is_large ? 128 : 64;
  const bool is_in_registers = is_small || (is_middle && is_large) || has_own_kernel;
  const std::int64_t blocks = checked_mul(ceil_div(sequence, queries), ceil_div(head_dim, columns));
  std::int64_t bytes = checked_mul(blocks, 16 + 4 * queries * columns);
  if (!is_in_registers) {
    const std::int64_t parts = std::max<std::int64_t>(1, std::min(ceil_div(sequence, columns), 200 / heads));
    bytes = checked_add(bytes, checked_mul(2 * 4 * parts * columns, round_up(head_dim, queries)));
  }
  return Bytes{checked_mul(heads, bytes)};
}

std::int64_t layer_norm_blocks(std::int64_t rows, std::int64_t width, const Device& device) {
  constexpr std::int64_t kManyRows = 65536, kWarp = 32, kRowsOfBlock = 32, kMostBlocks = 32768;
  if (rows <= kManyRows || width / kWarp >= device.sm_count / 2) return 0;
  return std::min(kMostBlocks / ceil_div(width, kWarp), ceil_div(rows, kRowsOfBlock));
}

Bytes split_copy_table(const std::vector<std::int64_t>& chunk_bytes, std::int64_t ranks, const Device& device) {
  std::int64_t tiles = 0;
  for (const std::int64_t bytes : chunk_bytes) tiles += ceil_div(bytes, kCopyTile);
  const std::int64_t most_blocks = device.sm_count * threads_an_sm(device) / 128 * 2;
  const std::int64_t work = ceil_div(checked_mul(tiles, ranks), most_blocks);
  const std::int64_t chunks_a_block =
      std::min(static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(work)))), ranks);
  const std::int64_t tiles_a_block = ceil_div(work, chunks_a_block);
  std::int64_t blocks = 0;
  for (const std::int64_t bytes : chunk_bytes) blocks += ceil_div(bytes, kCopyTile * tiles_a_block);
  const auto n = static_cast<std::int64_t>(chunk_bytes.size());
  return (4 * n + 1 + blocks) * Bytes{8};
}

Bytes chunk_cat_table(const std::vector<std::int64_t>& chunk_bytes) {
  std::int64_t blocks = 0;
  for (const std::int64_t bytes : chunk_bytes) blocks += ceil_div(bytes, kCopyTile);
  const auto n = static_cast<std::int64_t>(chunk_bytes.size());
  return (6 * n + 2 + blocks) * Bytes{8};
}

std::int64_t foreach_norm_partials(std::size_t tensors, std::int64_t largest) {
  return checked_mul(static_cast<std::int64_t>(tensors), ceil_div(largest, 65536));
}

Bytes embedding_sort_scratch(std::int64_t ids, const Device& device) { return radix_sort_scratch(ids, 64, device); }

Bytes radix_sort_scratch(std::int64_t keys, int bits, const Device& device) {
  constexpr std::int64_t kOneBlock = 2304;  // keys that one thread block sorts
  if (keys <= kOneBlock) return Bytes{1};
  constexpr std::array kTiles{Tile{90, 4608}, Tile{80, 3840}, Tile{0, 2816}};
  const std::int64_t tile = tile_on(device, kTiles), passes = ceil_div(bits, 8);
  const Bytes copies = passes > 1 ? 2 * round_up(keys * Bytes{8}, Bytes{256}) : Bytes{0};
  return copies + ceil_div(keys, tile) * kKiB + passes * Bytes{2048} + Bytes{511};
}

Bytes grouped_arguments(std::int64_t groups) {
  return round_up(groups, std::int64_t{2}) * Bytes{24} + groups * Bytes{12 + 24};
}

Bytes grouped_workspace(const Device& device) { return device.sm_count * Bytes{512}; }

int bits_of(std::int64_t count) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1))));
}

Bytes embedding_unique_scratch(std::int64_t ids, const Device& device) {
  constexpr std::array kTiles{Tile{100, 3840}, Tile{90, 4480}, Tile{81, 320}, Tile{80, 1792}, Tile{0, 320}};
  return scan_tiles(ids, tile_on(device, kTiles));
}

Bytes scan_scratch(std::int64_t items) { return scan_tiles(items, 896); }

Bytes count_scratch(std::int64_t flags, const Device& device) {
  constexpr std::int64_t kThreads = 256, kFlagsOfThread = 16, kBlocksForEach = 5;
  if (flags <= kThreads * kFlagsOfThread) return Bytes{1};
  const std::int64_t blocks = device.sm_count * (threads_an_sm(device) / kThreads) * kBlocksForEach;
  return round_up(blocks * Bytes{4}, Bytes{256}) + Bytes{255};
}

Bytes select_scratch(std::int64_t flags, const Device& device) {
  constexpr std::array kTiles{Tile{100, 3520}, Tile{90, 4224}, Tile{81, 640}, Tile{0, 2304}};
  return scan_tiles(flags, tile_on(device, kTiles), Bytes{8});
}

Bytes index_sort_scratch(std::int64_t rows, const Device& device) {
  return radix_sort_scratch(rows, bits_of(rows), device);
}

std::int64_t embedding_partials(std::int64_t ids, std::int64_t distinct) { return ids / 10 + distinct; }

}  // namespace vramfit::eager
