// What a run measured, in the terms of program/files/run_record.h.
#pragma once

#include <string>
#include <vector>

#include "executor/sharding/process_groups.h"
#include "executor/training/trainer.h"
#include "job/run/run_options.h"
#include "program/files/plan_reader.h"
#include "program/files/run_record.h"

namespace vramfit {

class Arena;

/// What this rank's meter has seen so far. Phases of step 1 are `first`, the largest of later steps `steady`. `arena`:
/// null if its memory comes from an allocator.
MeasuredRank measured_rank(const RankPlace& place, const Coords& coords, DeviceKind device, const Arena* arena);

/// Every rank's measurement in rank order on rank 0, nothing elsewhere; a collective call.
std::vector<MeasuredRank> gather_measured_ranks(ProcessGroups& groups, const MeasuredRank& own);

/// What the run did, without its ranks.
struct RunProgress {
  std::vector<StepResult> steps;
  std::string device = "cpu", weights;                     // device: cpu, cuda or phantom
  std::string fingerprint;                                 // of the program
  bool out_of_memory = false, stopped_at_retries = false;  // RunRecord
  std::string message;
};

/// What the flags of a run do to memory.
RunEffects run_effects(const RunOptions& options);

RunRecord make_run_record(const PlanFile& plan, const RunOptions& options, const RunProgress& progress,
                          std::vector<MeasuredRank> ranks);

/// Writes DIRECTORY/rankN.jsonl, one line an event: {"label", "category", "bytes", "phase", "step"}; frees are
/// negative.
void write_events(const Ledger& ledger, const std::string& directory, int rank);

}  // namespace vramfit
