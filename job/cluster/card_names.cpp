#include "job/cluster/card_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iterator>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text/characters.h"
#include "base/text/suggest.h"
#include "job/cluster/precision_support.h"

namespace vramfit {

namespace {

/// NVIDIA's cards outside the catalog, folded names. Sizes and compute capabilities are from memory, unverified; they
/// serve to name the nearest card of the catalog, nothing is computed with them.
struct OtherCard {
  std::string_view name;
  int gb, compute_capability;
};
constexpr std::array kOtherCards{
    OtherCard{"rtx5070", 12, 120},
    OtherCard{"rtx5060ti", 16, 120},
    OtherCard{"rtx5060", 8, 120},
    OtherCard{"rtx5050", 8, 120},
    OtherCard{"rtx4090d", 24, 89},
    OtherCard{"rtx4070ti", 12, 89},
    OtherCard{"rtx4070super", 12, 89},
    OtherCard{"rtx4070s", 12, 89},
    OtherCard{"rtx4070", 12, 89},
    OtherCard{"rtx4060", 8, 89},
    OtherCard{"rtx4050", 6, 89},
    OtherCard{"rtx3080ti", 12, 86},
    OtherCard{"rtx3070ti", 8, 86},
    OtherCard{"rtx3070", 8, 86},
    OtherCard{"rtx3060ti", 8, 86},
    OtherCard{"rtx3050", 8, 86},
    OtherCard{"rtx2080super", 8, 75},
    OtherCard{"rtx2080s", 8, 75},
    OtherCard{"rtx2080", 8, 75},
    OtherCard{"rtx2070super", 8, 75},
    OtherCard{"rtx2070s", 8, 75},
    OtherCard{"rtx2070", 8, 75},
    OtherCard{"rtx2060super", 8, 75},
    OtherCard{"rtx2060", 6, 75},
    OtherCard{"gtx1660ti", 6, 75},
    OtherCard{"gtx1660", 6, 75},
    OtherCard{"gtx1650", 4, 75},
    OtherCard{"gtx1080ti", 11, 61},
    OtherCard{"gtx1080", 8, 61},
    OtherCard{"gtx1070", 8, 61},
    OtherCard{"gtx1060", 6, 61},
    OtherCard{"titanv", 12, 70},
    OtherCard{"titanxp", 12, 61},
    OtherCard{"rtxa6000ada", 48, 89},
    OtherCard{"rtx5000ada", 32, 89},
    OtherCard{"rtx4500ada", 24, 89},
    OtherCard{"rtx4000ada", 20, 89},
    OtherCard{"rtx2000ada", 16, 89},
    OtherCard{"rtxa5500", 24, 86},
    OtherCard{"rtxa4500", 20, 86},
    OtherCard{"rtxa2000", 12, 86},
    OtherCard{"rtxpro5000", 48, 120},
    OtherCard{"rtxpro4500", 32, 120},
    OtherCard{"rtxpro4000", 24, 120},
    OtherCard{"quadrortx6000", 24, 75},
    OtherCard{"rtx6000", 24, 75},
    OtherCard{"quadrortx5000", 16, 75},
    OtherCard{"quadrortx4000", 8, 75},
    OtherCard{"a2", 16, 86},
    OtherCard{"a16", 16, 86},
    OtherCard{"p40", 24, 61},
    OtherCard{"p4", 8, 61},
    OtherCard{"m40", 24, 52},
    OtherCard{"m60", 8, 52},
    OtherCard{"k80", 12, 37},
    OtherCard{"h100pcie64gb", 64, 90},
};

/// Other vendors' names begin so.
struct OtherVendor {
  std::string_view prefix, vendor;
};
constexpr std::array kOtherVendors{
    OtherVendor{"mi50", "AMD"},    OtherVendor{"mi60", "AMD"},        OtherVendor{"mi1", "AMD"},
    OtherVendor{"mi2", "AMD"},     OtherVendor{"mi3", "AMD"},         OtherVendor{"mi4", "AMD"},
    OtherVendor{"rx6", "AMD"},     OtherVendor{"rx7", "AMD"},         OtherVendor{"rx9", "AMD"},
    OtherVendor{"radeon", "AMD"},  OtherVendor{"instinct", "AMD"},    OtherVendor{"amd", "AMD"},
    OtherVendor{"apple", "Apple"}, OtherVendor{"m1", "Apple"},        OtherVendor{"m2", "Apple"},
    OtherVendor{"m3", "Apple"},    OtherVendor{"m4", "Apple"},        OtherVendor{"m5", "Apple"},
    OtherVendor{"mps", "Apple"},   OtherVendor{"gaudi", "Intel"},     OtherVendor{"arc", "Intel"},
    OtherVendor{"intel", "Intel"}, OtherVendor{"max1", "Intel"},      OtherVendor{"tpu", "Google"},
    OtherVendor{"v5e", "Google"},  OtherVendor{"v5p", "Google"},      OtherVendor{"v6e", "Google"},
    OtherVendor{"trn", "Amazon"},  OtherVendor{"trainium", "Amazon"}, OtherVendor{"ascend", "Huawei"},
};

std::string digits_of(std::string_view text) {
  std::string digits;
  std::ranges::copy_if(text, std::back_inserter(digits), is_digit);
  return digits;
}

/// "h100" of "h10080gb" is not to be seen once folded, so this reads the name as it is typed: letters, then digits.
std::string model_of(std::string_view name) {
  const auto first_digit = std::ranges::find_if(name, is_digit);
  const auto end = std::find_if_not(first_digit, name.end(), is_digit);
  return folded_card_name(std::string_view(name.begin(), end));
}

const OtherCard* other_card(std::string_view name) {
  std::string folded = folded_card_name(name);
  for (const std::string_view prefix : {"nvidia", "geforce", "tesla"}) {
    if (folded.starts_with(prefix)) folded.erase(0, prefix.size());
  }
  const std::string with_rtx = "rtx" + folded;  // "4070", "4070Ti"
  const auto* const found = std::ranges::find_if(
      kOtherCards, [&](const OtherCard& card) { return card.name == folded || card.name == with_rtx; });
  return found == kOtherCards.end() ? nullptr : found;
}

/// Of the nearest generation, the card nearest in memory; of two such, the slower one.
const Card& nearest_card(const OtherCard& other) {
  const auto distance = [&](const Card& card) {
    return std::tuple(std::abs(card.device.compute_capability - other.compute_capability),
                      std::abs(std::log2(static_cast<double>(card.sold_as_gb) / other.gb)), card.bf16_flops);
  };
  return *std::ranges::min_element(card_catalog(), {}, distance);
}

std::string other_card_hint(const OtherCard& other) {
  const Card& near = nearest_card(other);
  const int capability = near.device.compute_capability;
  const std::string what_to_try =
      torch_has_kernels(capability)
          ? fmt::format("try {}@{}GB", near.name, other.gb)
          : fmt::format(
                "PyTorch {} has no kernels for it, but a script with an older one can be rehearsed: vramfit "
                "rehearse --gpus 1x{}@{}GB -- python train.py",
                kTorchVersion, near.name, other.gb);
  return fmt::format(
      " ({} GB, compute capability {}) is not in the catalog; the nearest by generation and memory is {} ({} GB, {}): "
      "{}",
      other.gb, capability_text(other.compute_capability), near.name, near.sold_as_gb, capability_text(capability),
      what_to_try);
}

/// Cards of the catalog that are the same model in another size or form, at most two, the most similar names first:
/// "H100-64GB" -> H100-80GB, H100-NVL-94GB.
std::vector<std::string> same_model(std::string_view name) {
  constexpr std::size_t kMostSuggestions = 2;
  std::vector<std::string> names;
  const std::string model = model_of(name);
  if (model.empty() || !is_digit(model.back())) return names;
  for (const Card& card : card_catalog()) {
    if (model_of(card.name) == model) names.push_back(card.name);
  }
  const std::string folded = folded_card_name(name);
  std::ranges::stable_sort(names, {},
                           [&](const std::string& other) { return edit_distance(folded, folded_card_name(other)); });
  if (names.size() > kMostSuggestions) names.resize(kMostSuggestions);
  return names;
}

/// A known name with the same number and nearly the same letters. Names of one or two letters have no misspellings:
/// each is another model.
std::string misspelt(std::string_view name) {
  constexpr std::size_t kLeastLetters = 3;
  const std::string folded = folded_card_name(name);
  const auto letters = static_cast<std::size_t>(std::ranges::find_if(folded, is_digit) - folded.begin());
  if (letters < kLeastLetters) return "";
  std::string best;
  std::size_t best_distance = 1 + folded.size() / 6 + 1;
  for (const Card& card : card_catalog()) {
    std::vector<std::string> names = card.aliases;
    names.push_back(card.name);
    for (const std::string& known : names) {
      const std::string other = folded_card_name(known);
      if (digits_of(other) != digits_of(folded)) continue;
      const std::size_t distance = edit_distance(folded, other);
      if (distance >= best_distance) continue;
      best_distance = distance;
      best = known;
    }
  }
  return best;
}

}  // namespace

std::string folded_card_name(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c == '-' || c == '_' || c == ' ') continue;
    result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

const Card* find_card(std::string_view name) {
  const std::string wanted = folded_card_name(name);
  for (const Card& card : card_catalog()) {
    if (folded_card_name(card.name) == wanted) return &card;
    if (std::ranges::any_of(card.aliases,
                            [&](const std::string& alias) { return folded_card_name(alias) == wanted; })) {
      return &card;
    }
  }
  return nullptr;
}

std::string unknown_card_hint(std::string_view name) {
  const std::string folded = folded_card_name(name);
  if (folded.find("mig") != std::string::npos) {
    return ": slices of a card (MIG) are no cards of the catalog; CARD@SIZE with the slice's memory answers for "
           "memory, "
           "such as 1xA100-40GB@20GB, with the speed of the whole card";
  }
  if (const OtherCard* other = other_card(name)) return other_card_hint(*other);
  for (const OtherVendor& row : kOtherVendors) {
    if (folded.starts_with(row.prefix)) return fmt::format(" is from {}: NVIDIA only, today", row.vendor);
  }
  if (const auto names = same_model(name); !names.empty()) {
    return fmt::format(": unknown card; did you mean {}? CARD@SIZE sets another size", fmt::join(names, " or "));
  }
  if (const std::string near = misspelt(name); !near.empty()) {
    return fmt::format(": unknown card; did you mean \"{}\"?", near);
  }
  return ": unknown card; \"vramfit gpus\" lists them, and just a size also works, such as 8x24GB";
}

}  // namespace vramfit
