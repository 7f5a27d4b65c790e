// Which gathers of a forward pass are certain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vramfit {

/// Whether a segment uses the units of the one before it, and no others; false for the first segment, and beyond the
/// last one.
bool is_as_before(const std::vector<std::vector<int>>& units_of_segment, std::size_t segment);

/// How many units may be gathered ahead in forward so that it is certain what a pass gathers, and when: all of a
/// segment's units, unless they are those of the segment before. Where another segment uses one of them, as the
/// embedding and the head do that share a matrix, the unit is dropped between them and gathered twice, unless one of
/// them is reached from the other. -1 where neighbours share some units and not all.
std::int64_t most_ahead_that_is_certain(const std::vector<std::vector<int>>& units_of_segment);

}  // namespace vramfit
