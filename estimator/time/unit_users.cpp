#include "estimator/time/unit_users.h"

#include "base/numbers/index.h"

namespace vramfit {

std::vector<UnitUsers> users_of_units(const Graph& graph, const UnitLayout& layout) {
  const auto is_block = [&](std::size_t s) { return graph.segments[s].role == SegmentRole::block; };
  std::vector<UnitUsers> all(layout.units.size());
  for (std::size_t s = 0; s < graph.segments.size(); ++s) {
    const std::vector<int>& units = layout.units_of_segment[s];
    for (const int unit : units) {
      UnitUsers& users = all[at(unit)];
      const bool is_first = users.count++ == 0;
      if (is_first) users.first = s;
      const bool follows = is_block(users.first) && is_block(s) && users.last + 1 == s;
      users.are_own = (is_first || (users.are_own && follows)) && units.size() == 1;
      users.last = s;
    }
  }
  return all;
}

}  // namespace vramfit
