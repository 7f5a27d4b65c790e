#include "estimator/time/certain_gathers.h"

#include <algorithm>
#include <limits>
#include <map>

namespace vramfit {

bool is_as_before(const std::vector<std::vector<int>>& units_of_segment, std::size_t segment) {
  if (segment == 0 || segment >= units_of_segment.size()) return false;
  return units_of_segment[segment] == units_of_segment[segment - 1];
}

std::int64_t most_ahead_that_is_certain(const std::vector<std::vector<int>>& units_of_segment) {
  std::int64_t most = std::numeric_limits<std::int64_t>::max(), gathers = 0;
  std::map<int, std::int64_t> latest;  // by unit: the number of gathers before it
  for (std::size_t s = 0; s < units_of_segment.size(); ++s) {
    if (units_of_segment[s].empty() || is_as_before(units_of_segment, s)) continue;
    for (const int unit : units_of_segment[s]) {
      const auto [before, is_new] = latest.try_emplace(unit, gathers);
      if (!is_new) most = std::min(most, gathers - before->second - 1);
      before->second = gathers;
    }
    ++gathers;
  }
  return most > 0 ? most : -1;
}

}  // namespace vramfit
