// The result of a rehearsal (vramfit/rehearsal@1): figures of each rank, and a verdict.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/rehearse/ghosts/ghost_store.h"
#include "cli/rehearse/processes/command.h"
#include "cli/rehearse/report/records.h"
#include "job/cluster/cluster.h"

namespace vramfit {

enum class RehearsalVerdict { fits, at_risk, does_not_fit, failed, timed_out, interrupted, no_gpu_used };
std::string_view verdict_name(RehearsalVerdict verdict);

/// One process on one card; ranks with equal figures share an entry.
struct RehearsedRank {
  std::int64_t first = 0, last = 0;  // ranks; processes without a rank are numbered in the order of their ids
  int card = 0;                      // as the process numbers them
  bool by_torch = false;  // otherwise only the driver's view exists: requested and allocated are what it handed out
  Bytes requested, allocated, reserved;
  Bytes total;        // what the card would show for this process at its peak
  Bytes outside;      // of total: context, communicators, allocations past torch
  Bytes managed;      // paged memory, which is on the host where the card has no room; not in total
  Bytes workspaces;   // what libraries may need to work in and counts as 0: the largest, and all that are kept
  Bytes upper_bound;  // total, and as much of the paged memory and of the workspaces as the card can hold beside it
  std::int64_t retries = 0, out_of_memory = 0, steps = 0;
  Bytes pinned;                             // host
  std::vector<std::int64_t> worked_inputs;  // sizes of the model's first input, in the last step after memory ran out
  std::vector<TorchPhase> phases;
  std::vector<TorchOutOfMemory> failures;
};

struct Rehearsal {
  std::vector<std::string> command;
  Cluster cluster;
  std::optional<std::int64_t> played_rank;
  std::vector<std::int64_t> played_ranks;  // of --ranks worst: each was played alone, the others were not
  bool strict_out_of_memory = false;       // one that the program survived counts too, in the exit code
  CommandEnd end;
  GhostReport ghosts;                    // of the store that a rank played alone meets
  std::vector<ProcessRecord> processes;  // all that opened a GPU library
  std::vector<RehearsedRank> ranks;
  int worst = -1;  // index in ranks of the largest total; -1: none
  RehearsalVerdict verdict = RehearsalVerdict::failed;
  std::string why;  // one sentence
  std::vector<std::string> notes;

  CountedReads uncertain_reads() const;  // of all processes
  CountedReads invented_reads() const;
  /// 0 or CMD's own code; 6 if it ran out of memory, with strict_out_of_memory also if it went on; 128 + n after
  /// signal n; 1 after the time-out.
  int exit_code() const;
};

/// Fills in ranks, worst, verdict, why and notes from processes, end and cluster.
void judge(Rehearsal& rehearsal);

/// vramfit/rehearsal@1.
std::string rehearsal_to_json(const Rehearsal& rehearsal);

/// Ends in a newline; the first line is the verdict.
std::string rehearsal_text(const Rehearsal& rehearsal);

}  // namespace vramfit
