// --load rank0: the rows that rank 0 reads for the other ranks, and the staging memory that this takes.
#pragma once

#include "program/stages/units_layout.h"

namespace vramfit {

/// Bytes that rank 0 sends at a time: enough to keep a network busy, and small compared with a unit.
inline constexpr Bytes kLoadStaging{std::int64_t{16} << 20};

/// Rows of each rank's slice of a parameter that are sent at a time, at least one.
std::int64_t load_chunk_rows(const UnitParameter& parameter, std::int64_t shards);

/// The buffer in which rank 0 stages rows of all ranks while it loads: the largest of its sends. Zero with one shard,
/// because rank 0 then reads into its shard and the replicas receive that. At most the largest parameter, padded.
Bytes load_staging(const UnitLayout& layout);

}  // namespace vramfit
