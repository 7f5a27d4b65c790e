#include "phantom/core/fat_binary.h"

#include <zstd.h>

#include <cstdint>
#include <cstring>

namespace vramfit::phantom {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kMagic = 0xBA55ED50, kWrapperMagic = 0x466243B1;
constexpr std::uint16_t kPtx = 1, kCubin = 2;
constexpr std::uint64_t kPackedLz4 = 0x2000, kPackedZstd = 0x8000;
constexpr std::uint64_t kThisCardOnly = 0x100000;  // sm_90a: runs on exactly this capability
constexpr std::size_t kLz4MostRatio = 255;         // a byte of a length stands for at most as many

struct Header {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t bytes;  // of the entries
};

struct Entry {
  std::uint16_t kind, version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;         // of the payload, padded
  std::uint32_t packed_bytes;  // of the payload if it is compressed
  std::uint32_t options_offset;
  std::uint16_t code_minor, code_major;
  std::uint32_t capability;  // 90
  std::uint32_t name_offset, name_bytes;
  std::uint64_t flags, reserved;
  std::uint64_t unpacked_bytes;
};
static_assert(sizeof(Header) == 16 && sizeof(Entry) == 64);

/// Higher is better; 0 if the card can't use it.
int rank_of(const Entry& entry, int major, int minor) {
  const int capability = static_cast<int>(entry.capability);
  const int card = 10 * major + minor;
  if (capability > card) return 0;
  const bool only = (entry.flags & kThisCardOnly) != 0;
  if (only && capability != card) return 0;
  if (entry.kind == kPtx) return capability;
  if (entry.kind != kCubin || capability / 10 != major) return 0;
  return 100'000 + 10 * capability + (only ? 1 : 0);
}

std::optional<DeviceImage> unpack(const Entry& entry, Bytes payload) {
  DeviceImage image;
  image.is_ptx = entry.kind == kPtx;
  if ((entry.flags & (kPackedLz4 | kPackedZstd)) == 0) {
    image.content = payload;
    return image;
  }
  if (entry.packed_bytes > payload.size()) return std::nullopt;
  const Bytes packed = payload.first(entry.packed_bytes);
  if ((entry.flags & kPackedZstd) != 0) {
    if (ZSTD_getFrameContentSize(packed.data(), packed.size()) != entry.unpacked_bytes) return std::nullopt;
    image.unpacked.resize(entry.unpacked_bytes);
    const std::size_t made =
        ZSTD_decompress(image.unpacked.data(), image.unpacked.size(), packed.data(), packed.size());
    if (ZSTD_isError(made) != 0 || made != entry.unpacked_bytes) return std::nullopt;
  } else {
    if (entry.unpacked_bytes / kLz4MostRatio > packed.size()) return std::nullopt;
    image.unpacked = unpack_lz4(packed, entry.unpacked_bytes);
    if (image.unpacked.size() != entry.unpacked_bytes) return std::nullopt;
  }
  image.content = image.unpacked;
  return image;
}

// A length of 15 goes on in bytes, until one is not 255.
bool add_length(Bytes packed, std::size_t& at, std::size_t& length) {
  if (length != 15) return true;
  for (;;) {
    if (at >= packed.size()) return false;
    const auto more = std::to_integer<std::size_t>(packed[at++]);
    length += more;
    if (more != 255) return true;
  }
}

}  // namespace

std::vector<std::byte> unpack_lz4(Bytes packed, std::size_t bytes) {
  std::vector<std::byte> out;
  out.reserve(bytes);
  std::size_t at = 0;
  while (at < packed.size()) {
    const auto token = std::to_integer<std::size_t>(packed[at++]);
    std::size_t literals = token >> 4U;
    if (!add_length(packed, at, literals) || packed.size() - at < literals || bytes - out.size() < literals) return {};
    const auto from = packed.begin() + static_cast<std::ptrdiff_t>(at);
    out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(literals));
    at += literals;
    if (at == packed.size()) return out;  // the last sequence has literals only
    if (packed.size() - at < 2) return {};
    const std::size_t back = std::to_integer<std::size_t>(packed[at]) | std::to_integer<std::size_t>(packed[at + 1])
                                                                            << 8U;
    at += 2;
    std::size_t match = token & 15U;
    if (!add_length(packed, at, match)) return {};
    match += 4;
    if (back == 0 || back > out.size() || bytes - out.size() < match) return {};
    for (std::size_t i = 0; i < match; ++i) out.push_back(out[out.size() - back]);  // it may overlap itself
  }
  return out;
}

std::optional<DeviceImage> image_for(Bytes fat_binary, int major, int minor) {
  Header header;
  if (fat_binary.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, fat_binary.data(), sizeof header);
  if (header.magic != kMagic || header.header_bytes < sizeof header || header.header_bytes > fat_binary.size() ||
      fat_binary.size() - header.header_bytes < header.bytes) {
    return std::nullopt;
  }
  Bytes rest = fat_binary.subspan(header.header_bytes, header.bytes);
  int best_rank = 0;
  Entry best{};
  Bytes best_payload;
  while (rest.size() >= sizeof(Entry)) {
    Entry entry;
    std::memcpy(&entry, rest.data(), sizeof entry);
    if (entry.header_bytes < sizeof entry || entry.header_bytes > rest.size() ||
        rest.size() - entry.header_bytes < entry.bytes) {
      return std::nullopt;
    }
    const int rank = rank_of(entry, major, minor);
    if (rank > best_rank) {
      best_rank = rank;
      best = entry;
      best_payload = rest.subspan(entry.header_bytes, entry.bytes);
    }
    rest = rest.subspan(entry.header_bytes + entry.bytes);
  }
  if (best_rank == 0) return std::nullopt;
  return unpack(best, best_payload);
}

std::size_t fat_binary_bytes(const void* fat_binary) {
  Header header;
  std::memcpy(&header, fat_binary, sizeof header);
  return header.magic == kMagic ? header.header_bytes + header.bytes : 0;
}

const void* unwrap(const void* wrapper) {
  struct {
    std::uint32_t magic, version;
    const void* fat_binary;
  } fields{};
  std::memcpy(&fields, wrapper, sizeof fields);
  return fields.magic == kWrapperMagic ? fields.fat_binary : nullptr;
}

}  // namespace vramfit::phantom
