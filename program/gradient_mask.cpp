#include "program/gradient_mask.h"

#include <algorithm>

namespace vramfit {

std::int64_t mask_part(const UnitLayout& layout) {
  std::int64_t longest = 0;
  for (const Unit& unit : layout.units) {
    for (const UnitParameter& p : unit.parameters) {
      if (p.trainable) longest = std::max(longest, p.shard_elements);
    }
  }
  return std::min(longest, kMaskPart);
}

}  // namespace vramfit
