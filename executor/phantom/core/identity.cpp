#include "executor/phantom/core/identity.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "executor/phantom/core/attributes.h"
#include "executor/phantom/core/session.h"
#include "executor/phantom/core/visible_cards.h"

namespace vramfit::phantom {

std::array<unsigned char, 16> card_uuid(int card) {
  // FNV-1a over the card's name and place: equal everywhere, different for each card.
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001B3ULL; };
  for (const char letter : session().card.catalog_name) add(static_cast<unsigned char>(letter));
  add(static_cast<unsigned char>(place_of_card(card)));
  std::array<unsigned char, 16> uuid{};
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    add(static_cast<unsigned char>(i));
    uuid[i] = static_cast<unsigned char>(hash >> 32U);
  }
  return uuid;
}

std::string card_uuid_text(int card) {
  std::string text = "GPU-";
  const auto uuid = card_uuid(card);
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", uuid[i]);
    text += digits.data();
  }
  return text;
}

std::string card_pci_bus_id(int card) {
  std::array<char, 32> text{};
  constexpr int kBus = 33, kDevice = 34, kDomain = 50;
  std::snprintf(text.data(), text.size(), "%04X:%02X:%02X.0", device_attribute(kDomain, card).value_or(0),
                device_attribute(kBus, card).value_or(0), device_attribute(kDevice, card).value_or(0));
  return text.data();
}

}  // namespace vramfit::phantom
