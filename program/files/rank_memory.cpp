#include "program/files/rank_memory.h"

#include <algorithm>

namespace vramfit {
namespace {

struct OtherPart {
  std::string_view name;
  Bytes Breakdown::*bytes;
};
constexpr std::array<OtherPart, kBreakdownParts - kCategories> kOtherParts{
    {{"rounding", &Breakdown::rounding},
     {"fragmentation", &Breakdown::fragmentation},
     {"outside_allocator", &Breakdown::outside_allocator}}};

}  // namespace

std::string_view breakdown_part_name(std::size_t part) {
  return part < kCategories ? category_name(static_cast<Category>(part)) : kOtherParts.at(part - kCategories).name;
}

std::array<Bytes, kBreakdownParts> breakdown_parts(const Breakdown& breakdown) {
  std::array<Bytes, kBreakdownParts> parts{};
  std::ranges::copy(breakdown.categories, parts.begin());
  for (std::size_t i = 0; i < kOtherParts.size(); ++i) parts[kCategories + i] = breakdown.*kOtherParts[i].bytes;
  return parts;
}

Breakdown breakdown_of(const std::array<Bytes, kBreakdownParts>& parts) {
  Breakdown breakdown;
  std::copy_n(parts.begin(), kCategories, breakdown.categories.begin());
  for (std::size_t i = 0; i < kOtherParts.size(); ++i) breakdown.*kOtherParts[i].bytes = parts[kCategories + i];
  return breakdown;
}

}  // namespace vramfit
