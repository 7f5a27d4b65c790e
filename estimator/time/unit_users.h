// Which segments use a unit.
#pragma once

#include <cstddef>
#include <vector>

#include "model_specs/graph.h"
#include "program/stages/units_layout.h"

namespace vramfit {

struct UnitUsers {
  std::size_t first = 0, last = 0;  // segments
  std::size_t count = 0;
  bool are_own = false;  // one, or neighbouring blocks, without another unit
};

/// By unit.
std::vector<UnitUsers> users_of_units(const Graph& graph, const UnitLayout& layout);

}  // namespace vramfit
