// CRC-32C (Castagnoli), the checksum of checkpoint files.
#pragma once

#include <cstdint>
#include <span>

namespace vramfit {

/// The checksum of `bytes` appended to bytes whose checksum is `before` (0: none). Reflected polynomial 0x82F63B78, as
/// in RFC 3720 appendix B.4: "123456789" gives 0xE3069283. Any change within 32 consecutive bits changes it.
std::uint32_t crc32c(std::span<const char> bytes, std::uint32_t before = 0);

}  // namespace vramfit
