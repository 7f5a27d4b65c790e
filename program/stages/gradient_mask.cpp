#include "program/stages/gradient_mask.h"

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

Work mask_work(const Job& job, const UnitLayout& layout) {
  const bool is_read = std::holds_alternative<GradientMaskFile>(job.gradient_mask);
  Work work{.launches = 0};
  for (const Unit& unit : layout.units) {
    const double each = 2 * static_cast<double>(dtype_bytes(unit.gradient).n) + (is_read ? 1.0 : 15.0 * 16);
    work.bytes += static_cast<double>(unit.trainable_elements) * each;
    if (unit.trainable_elements > 0) work.launches += is_read ? 1 : 16;
  }
  return work;
}

}  // namespace vramfit
