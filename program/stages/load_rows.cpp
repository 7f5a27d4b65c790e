#include "program/stages/load_rows.h"

#include <algorithm>

namespace vramfit {

std::int64_t load_chunk_rows(const UnitParameter& parameter, std::int64_t shards) {
  const Bytes row = checked_mul(shards, parameter.row_elements) * dtype_bytes(parameter.dtype);
  const std::int64_t rows = row.n == 0 ? parameter.rows_per_rank : kLoadStaging.n / row.n;
  return std::clamp<std::int64_t>(rows, 1, std::max<std::int64_t>(parameter.rows_per_rank, 1));
}

Bytes load_staging(const UnitLayout& layout) {
  Bytes most{0};
  if (layout.shards == 1) return most;
  for (const Unit& unit : layout.units) {
    for (const UnitParameter& p : unit.parameters) {
      const std::int64_t rows = checked_mul(layout.shards, load_chunk_rows(p, layout.shards));
      most = std::max(most, checked_mul(rows, p.row_elements) * dtype_bytes(p.dtype));
    }
  }
  return most;
}

}  // namespace vramfit
