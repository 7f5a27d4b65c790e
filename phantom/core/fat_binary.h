// Fat binaries: what nvcc puts into a program, device code for several architectures, compressed.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

struct DeviceImage {
  bool is_ptx = false;              // text that a driver would compile; else a cubin
  std::vector<std::byte> unpacked;  // owns the content if it was compressed
  std::span<const std::byte> content;
};

/// The image that a card of this capability runs: the cubin of its major version with the highest minor that is not
/// above the card's (those made for exactly this card first), else the highest PTX that is not above it. None if
/// there is no such image or the fat binary is damaged.
PHANTOM_CORE std::optional<DeviceImage> image_for(std::span<const std::byte> fat_binary, int major, int minor);

/// Bytes of a fat binary in memory; 0 if it is none.
PHANTOM_CORE std::size_t fat_binary_bytes(const void* fat_binary);

/// Follows nvcc's wrapper (what __cudaRegisterFatBinary gets) to the fat binary; null if it is none.
PHANTOM_CORE const void* unwrap(const void* wrapper);

/// The LZ4 block format, as nvcc before CUDA 12.8 uses it. Empty if it is damaged.
PHANTOM_CORE std::vector<std::byte> unpack_lz4(std::span<const std::byte> packed, std::size_t bytes);

}  // namespace vramfit::phantom
