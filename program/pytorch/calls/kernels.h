// Temporaries inside single CUDA calls of torch 2.11, as functions of their sizes. From the sources named, each
// compared with traces of the caching allocator (tests/oracle/torchtitan_like).
#pragma once

#include <cstdint>
#include <vector>

#include "base/text/units.h"
#include "job/cluster/device.h"

namespace vramfit::eager {

/// The table of addresses and sizes that split_with_sizes_copy packs: FSDP2's copy-out. `chunk_bytes`: each
/// parameter's share of one rank (ATen/native/cuda/TensorShape.cu).
Bytes split_copy_table(const std::vector<std::int64_t>& chunk_bytes, std::int64_t ranks, const Device& device);

/// The table that _chunk_cat packs: the copy into reduce-scatter's input. `chunk_bytes` of the input (same source).
Bytes chunk_cat_table(const std::vector<std::int64_t>& chunk_bytes);

/// Partial norms of _foreach_norm: one float for each 65536 elements of the largest tensor, for every tensor
/// (ATen/native/cuda/ForeachReduceOp.cu).
std::int64_t foreach_norm_partials(std::size_t tensors, std::int64_t largest);

/// The largest head_dim for which PyTorch prefers cuDNN's attention to flash attention; 0 where it never does
/// (native/transformers/cuda/sdp_utils.cpp; seen with 17 head_dims on 9.0, 10.0, 10.3, 8.0 and 12.0).
std::int64_t widest_cudnn_attention(const Device& device);
/// The same where a program asks for cuDNN's first (sdpa_kernel with set_priority): the largest that it takes at all.
std::int64_t widest_cudnn_attention_asked_for(const Device& device);

/// What at::_efficient_attention_backward works in for inputs of 16 bits; `heads` counts the whole batch. Blocks of the
/// queries' gradient, with a lock each, and, where a kernel can't hold them in registers, of the keys' and the values'
/// for each part of the keys (native/transformers/cuda/mem_eff_attention: kernel_backward.h, kernels/cutlassB.h; seen
/// on 8.0, 8.9 and 12.0).
Bytes efficient_workspace_in_16_bits(std::int64_t heads, std::int64_t sequence, std::int64_t head_dim,
                                     const Device& device);

/// Blocks of rows that layer_norm's backward sums apart from each other, for the gradients of weight and bias; 0: none
/// (ATen/native/cuda/layer_norm_kernel.cu: LaunchGammaBetaBackwardCUDAKernel).
std::int64_t layer_norm_blocks(std::int64_t rows, std::int64_t width, const Device& device);

/// Rows up to which embedding_dense_backward needs no sorting.
inline constexpr std::int64_t kUnsortedEmbeddingRows = 3072;

/// cub's scratch in embedding_dense_backward: the radix sort of the ids, the list of distinct ones, the running sum
/// over them (ATen/native/cuda/EmbeddingBackwardKernel.cu). Tile sizes are those of cub's tuning for each compute
/// capability, found from the numbers of ids at which torch 2.11 allocates more (H100, B200, A100, RTX 4090, 3090,
/// 5090).
Bytes embedding_sort_scratch(std::int64_t ids, const Device& device);
Bytes embedding_unique_scratch(std::int64_t ids, const Device& device);
/// The running sum over as many numbers of 8 bytes; also in masked_scatter (ATen/native/cuda/IndexKernel.cu).
Bytes scan_scratch(std::int64_t items);

/// Numbers up to which at::sort works without scratch.
inline constexpr std::int64_t kSmallSort = 4096;

/// cub's scratch for sorting as many 64-bit keys, of which `bits` may differ, with 64-bit values.
Bytes radix_sort_scratch(std::int64_t keys, int bits, const Device& device);
/// Bits that tell `count` numbers from each other.
int bits_of(std::int64_t count);
/// Of CUTLASS' product for groups of rows, in bf16 on compute capability 9.0 (ATen/native/cuda/GroupMM.cu): addresses,
/// sizes and strides of both factors and the result of each group; and four descriptors of 128 bytes for each
/// multiprocessor.
Bytes grouped_arguments(std::int64_t groups);
Bytes grouped_workspace(const Device& device);

/// cub's scratch for running sums of 32-bit numbers that one thread block adds up.
inline constexpr std::int64_t kRunningSumScratch = 1023;

/// Partial sums that it makes at most: one for every ten ids and one for each distinct id.
std::int64_t embedding_partials(std::int64_t ids, std::int64_t distinct);

/// cub's scratch in nonzero (ATen/native/cuda/Nonzero.cu): how many of the flags are set, and which. Tile sizes as
/// above.
Bytes count_scratch(std::int64_t flags, const Device& device);
Bytes select_scratch(std::int64_t flags, const Device& device);

/// The same in index_put with accumulation into `rows` rows, each of them once: the sort by their numbers' lowest bits
/// (ATen/native/cuda/Indexing.cu).
Bytes index_sort_scratch(std::int64_t rows, const Device& device);

}  // namespace vramfit::eager
