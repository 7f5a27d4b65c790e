// The ranks[] that estimates, plans and run records share (configs/schemas/).
#pragma once

#include <vector>

#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "program/files/rank_memory.h"

namespace vramfit {

/// Writes the members of one entry of ranks[] into the open object.
void write_rank_members(JsonWriter& writer, const RankEstimate& rank);
/// `ranks` and `worst`.
void write_ranks(JsonWriter& writer, const std::vector<RankEstimate>& ranks, int worst);

/// Reads what write_rank_members wrote. Does not finish() the object: runs add members of their own.
RankEstimate read_rank(JsonObject& object);
/// `ranks`, at least one, and `worst`, one of them.
std::vector<RankEstimate> read_ranks(JsonObject& object, int& worst);

}  // namespace vramfit
