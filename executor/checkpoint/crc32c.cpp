#include "executor/checkpoint/crc32c.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

namespace vramfit {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are taken at once, lowest first");

constexpr std::size_t kSlices = 8;
using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

// tables[k][b]: the checksum of byte b followed by k zero bytes (Kounavis, Berry: Novel Table Lookup-Based Algorithms
// for High-Performance CRC Generation, 2008).
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < kSlices; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = (shorter >> 8U) ^ tables[0][shorter & 0xFFU];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t eight_bytes(std::uint64_t word) {
  std::uint32_t crc = 0;
  for (std::size_t k = 0; k < kSlices; ++k) crc ^= kTables.at(kSlices - 1 - k).at((word >> (8 * k)) & 0xFFU);
  return crc;
}

}  // namespace

std::uint32_t crc32c(std::span<const char> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  while (bytes.size() >= kSlices) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), kSlices);
    crc = eight_bytes(word ^ crc);
    bytes = bytes.subspan(kSlices);
  }
  for (const char c : bytes) crc = (crc >> 8U) ^ kTables[0].at((crc ^ static_cast<unsigned char>(c)) & 0xFFU);
  return ~crc;
}

}  // namespace vramfit
