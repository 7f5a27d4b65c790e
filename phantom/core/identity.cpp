#include "phantom/core/identity.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "phantom/core/session.h"

namespace vramfit::phantom {

std::array<unsigned char, 16> uuid_of_place(int place) {
  constexpr std::size_t kOfName = 10;  // bytes; the place has the last group
  std::array<unsigned char, 16> uuid{};
  std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001B3ULL; };
  for (const char letter : session().card.catalog_name) add(static_cast<unsigned char>(letter));
  for (std::size_t i = 0; i < kOfName; ++i) {
    add(static_cast<unsigned char>(i));
    uuid[i] = static_cast<unsigned char>(hash >> 32U);
  }
  for (std::size_t i = uuid.size(); i > kOfName; --i, place /= 100) {  // two decimal digits a byte
    uuid[i - 1] = static_cast<unsigned char>(place % 100 / 10 << 4 | place % 10);
  }
  return uuid;
}

std::string uuid_text_of_place(int place) {
  std::string text = "GPU-";
  const auto uuid = uuid_of_place(place);
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", uuid[i]);
    text += digits.data();
  }
  return text;
}

std::string pci_bus_id_of_place(int place) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "0000:%02X:00.0", static_cast<unsigned>(place + 1) & 0xFFU);
  return text.data();
}

}  // namespace vramfit::phantom
