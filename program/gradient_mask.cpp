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

void MaskCounter::load() {
  if (job_.gradient_mask != GradientMask::file) return;
  for (const Unit& unit : layout_.units) {
    if (unit.trainable_elements == 0) continue;
    masks_.push_back(
        blocks_.allocate(unit.trainable_elements, Dtype::u8, Category::optimizer_state, unit.name + ": gradient mask"));
  }
}

void MaskCounter::apply() {
  if (job_.gradient_mask != GradientMask::keep || device_.kind != DeviceKind::cuda) return;
  const std::int64_t elements = mask_part(layout_);
  const Block words = blocks_.allocate(elements, Dtype::i64, Category::temporaries, "mask: words");
  const Block bits = blocks_.allocate(elements, Dtype::i64, Category::temporaries, "mask: bits");
}

}  // namespace vramfit
