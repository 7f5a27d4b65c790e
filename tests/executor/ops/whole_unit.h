// A unit that one rank has whole, for tests of updates.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "executor/optimizers/optimizers.h"
#include "program/stages/units_layout.h"

namespace vramfit::testing {

/// Of parameters with these rows and columns, and `between` elements that nobody owns between two of them.
inline Unit whole_unit(std::initializer_list<std::pair<std::int64_t, std::int64_t>> parameters,
                       std::int64_t between = 0) {
  Unit unit;
  std::int64_t end = 0;
  for (const auto& [rows, columns] : parameters) {
    UnitParameter p;
    p.rows = p.rows_per_rank = rows;
    p.row_elements = columns;
    p.shard_elements = rows * columns;
    p.shard_offset = unit.parameters.empty() ? 0 : end + between;
    end = p.shard_offset + p.shard_elements;
    unit.parameters.push_back(p);
  }
  unit.trainable_elements = end;
  return unit;
}

inline std::vector<ParameterRows> rows_of(const Unit& unit) {
  std::vector<ParameterRows> rows;
  for (const UnitParameter& p : unit.parameters) {
    rows.push_back({p.shard_offset, p.rows, p.row_elements, p.rows, p.rows});
  }
  return rows;
}

}  // namespace vramfit::testing
