// The allocations of a run held against those that its plan predicts, one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/files/plan_reader.h"
#include "program/files/run_record.h"

namespace vramfit {

struct ComparedEvents {
  std::int64_t rank = 0;
  std::int64_t compared = 0;     // allocations that are equal, up to the first that differs
  std::string first_difference;  // empty: none
};

/// Counts the plan's job for each rank of the run whose events lie in `directory` (rankN.jsonl, as `vramfit run
/// --events` writes them) and compares load and the first two steps: a later step allocates as the second does. Throws
/// InputError when the folder has no rank of the run, for a file that can't be read, and for a job of too many
/// micro-batches to be counted one by one.
std::vector<ComparedEvents> compare_events(const PlanFile& plan, const RunRecord& run, const std::string& directory);

}  // namespace vramfit
