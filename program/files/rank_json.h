// The ranks[] that estimates, plans and run records share (configs/schemas/).
#pragma once

#include <cstdint>
#include <vector>

#include "base/json_value.h"
#include "base/json_writer.h"
#include "program/files/rank_memory.h"

namespace vramfit {

/// The largest number of bytes that a file may state: far above any machine's, and sums of several don't overflow.
inline constexpr std::int64_t kMostStatedBytes = std::int64_t{1} << 60;

/// Writes the members of one entry of ranks[] into the open object.
void write_rank_members(JsonWriter& writer, const RankEstimate& rank);
/// `ranks` and `worst`.
void write_ranks(JsonWriter& writer, const std::vector<RankEstimate>& ranks, int worst);

/// Reads what write_rank_members wrote. Does not finish() the object: runs add members of their own.
RankEstimate read_rank(JsonObject& object);
/// `ranks`, at least one, and `worst`, one of them.
std::vector<RankEstimate> read_ranks(JsonObject& object, int& worst);

}  // namespace vramfit
