// --load rank0: rows that rank 0 reads for the others, and the memory that it stages them in.
#pragma once

#include "estimator/units_layout.h"

namespace vramfit {

/// Bytes that rank 0 sends at a time: enough to keep a network busy, small beside a unit.
inline constexpr Bytes kLoadStaging{std::int64_t{16} << 20};

/// Rows of each rank's slice of a parameter that go out at a time, at least one.
std::int64_t load_chunk_rows(const Unit& unit, const UnitParameter& parameter, std::int64_t shards);

/// What rank 0 of the job stages rows of all ranks in while it loads: the largest of its sends. Zero with one shard,
/// where it reads into its shard and the replicas receive that. Never more than the largest parameter, padded.
Bytes load_staging(const UnitLayout& layout);

}  // namespace vramfit
