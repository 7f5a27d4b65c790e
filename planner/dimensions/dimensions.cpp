#include "planner/dimensions/dimensions.h"

namespace vramfit {

std::span<const Dimension> dimensions() {
  static const std::vector<Dimension> kDimensions{
#define DIMENSION(name) dimension::name(),
#include "planner/dimensions/list.def"
#undef DIMENSION
  };
  return kDimensions;
}

}  // namespace vramfit
