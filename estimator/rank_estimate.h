// One rank's estimate, from the graph to totals and bound: the step that verdicts and suggestions share.
#pragma once

#include <limits>
#include <optional>

#include "estimator/allocator/driver.h"
#include "estimator/estimate.h"
#include "job/allocator/allocator_settings.h"
#include "program/arena/script.h"
#include "program/program.h"
#include "program/readers/count.h"

namespace vramfit {

inline constexpr Bytes kNoLimit{std::numeric_limits<std::int64_t>::max()};

/// The program of a resolved job's first rank, without labels. Throws NotModelled.
program::Program program_of(const Graph& graph, const Job& job, const Cluster& cluster, const RunEffects& run);

/// What a program asks an allocator for. Labels are needed only where a step keeps something for good.
Ledger events_of(const program::Program& program, const CountOptions& options);

/// Counts a resolved job and folds it. Ranks hold equal shards, so one stands for all. Throws NotModelled.
/// `retries`: whether a job that needs more than the card has is replayed at the card's capacity. Without that, what it
/// lacks is alloc_retries, later_retries, out_of_memory and gives_back: it does not fit in any case, but perhaps with
/// retries.
RankEstimate estimate_rank(const Graph& graph, const Job& job, const Cluster& cluster, const CountOptions& options,
                           bool retries = true);

/// The same from a program of the job, made for `options.run`.
RankEstimate estimate_program(const program::Program& program, const Graph& graph, const Job& job,
                              const Cluster& cluster, const CountOptions& options, bool retries = true);

/// The same for a caller that asks two things only: whether the total is below `below` (none if not), and whether the
/// verdict is `fits`. Both are found out as early as possible: retries are not counted, and a job that needs one, or
/// that runs out of memory, has gives_back. Of the rest, only what the verdict follows from is filled in: not the
/// breakdown, nor phases.
std::optional<RankEstimate> estimate_rank_below(const Graph& graph, const Job& job, const Cluster& cluster,
                                                const CountOptions& options, Bytes below);

struct CountBelow {
  CountOptions options;
  Bytes below;
  bool retries = false;  // whether it gives cached memory back where its total is above the card's memory
};
/// The same from a program of the job, made for `options.run`.
std::optional<RankEstimate> estimate_program_below(const program::Program& program, const Graph& graph, const Job& job,
                                                   const Cluster& cluster, const CountBelow& count);

struct CompleteBelow {
  Bytes outside;         // outside_allocator() of the job there
  bool retries = false;  // as CountBelow has it
};
/// What a rank that fold_below() or fold_in_arena() made of `ledger` lacks on the cards of `cluster`: totals, its upper
/// bound, and whether it gives cached memory back.
void complete_below(RankEstimate& rank, const Ledger& ledger, const Job& job, const Cluster& cluster,
                    const CompleteBelow& end);

/// fold() for a GPU, its peaks over everything alone; none if the job reserves `below` or more.
std::optional<RankEstimate> fold_below(const Ledger& ledger, const Job& job, Bytes below);

/// fold_in_arena() of a program and its ledger; none if the job reserves `below` or more. Packing takes far longer than
/// finding out what lives at once.
std::optional<RankEstimate> fold_in_arena_below(const program::Program& program, const Ledger& ledger,
                                                const Device& device, Bytes below);

/// fold() with `arena` in the caching allocator's place: what is reserved is its block, from load to the end.
RankEstimate fold_in_arena(const Ledger& ledger, const arena::Script& arena, const Device& device);

/// The norm of all gradients is taken of what is there before the update, which may then make copies of gradients or
/// masters. A schedule may have counted it already.
void add_clip_phase(RankEstimate& rank);

/// The multiples that the offsets of an arena have on this device.
Bytes arena_granule(const Device& device);

/// Context, and one communicator for each axis that has ranks to talk to; groups within one are another.
Bytes outside_allocator(const Graph& graph, const Job& job, const Cluster& cluster);

/// What the rank needs at most, from its peaks and its total. The job is resolved, and the cluster says how sure it is
/// to be.
Bytes upper_bound(const RankEstimate& rank, const Job& job, const Cluster& cluster);
/// Whether the upper bound of a rank for which the allocator holds `reserved` or more is above the card's memory.
bool exceeds_card(Bytes reserved, Bytes outside_allocator, const Job& job, const Cluster& cluster);

/// Folds a ledger as the caching allocator handles it on this card. Its address order is given, so there is no band.
RankEstimate fold_on(const Ledger& ledger, const AllocatorSettings& settings, Driver& card);

/// fits: the bound is within capacity; at_risk: only the total is, or the allocator gets by with retries.
Verdict verdict_of(const RankEstimate& rank, Bytes capacity);
/// Likewise on a cluster's cards, and does_not_fit where a node's ranks keep more in host memory than it has.
Verdict verdict_of(const RankEstimate& rank, const Cluster& cluster);

}  // namespace vramfit
