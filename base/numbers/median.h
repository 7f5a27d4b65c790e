#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace vramfit {

/// The upper one of the two in the middle, where there are two. Not of an empty list.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace vramfit
