#include "estimator/rank_estimate.h"

#include <algorithm>

#include "estimator/allocator/ledger_replay.h"
#include "estimator/allocator/requests.h"
#include "estimator/bound/margins.h"
#include "estimator/host_memory.h"
#include "job/cluster/context.h"
#include "job/sharding/sharding.h"
#include "program/make_program.h"
#include "program/readers/bytes.h"
#include "program/schedules/schedule.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"

namespace vramfit {

namespace {

// CPU: the ledger holds every allocation; the bound leaves half a percent for scratch that a library's version
// may add to a kernel's. It stays below the 2 % that a bound may exceed a peak by.
constexpr std::int64_t kCpuMarginDivisor = 200;

// CUDA, without --confidence: 2 % of what the allocator reserves, and a quarter of what is outside it. A judgement;
// docs/upper-bound.md compares it with recorded cases.
constexpr std::int64_t kReservedMarginDivisor = 50, kOutsideMarginDivisor = 4;

Bytes free_for_allocator(const RankEstimate& rank, const Card& card) {
  return card.memory - std::min(card.memory, rank.breakdown.outside_allocator);
}

/// What happens at the card's real capacity, if what the job reserves without a limit doesn't fit.
void add_retries(RankEstimate& rank, const Ledger& ledger, const Job& job, const Card& card) {
  const AllocatorSettings settings = allocator_settings(job.allocator);
  if (rank.total <= card.memory && settings.memory_fraction == 1) return;
  if (is_arena(job.allocator)) {  // its block is there or not: nothing is cached that could be given back
    rank.out_of_memory = rank.total > card.memory;
    return;
  }
  const CapacityReplay replay = replay_at_capacity(ledger, settings, card.memory, free_for_allocator(rank, card));
  rank.alloc_retries = replay.retries;
  rank.later_retries = replay.later_retries;
  rank.out_of_memory = replay.out_of_memory;
  rank.gives_back = !replay.out_of_memory && (rank.total > card.memory || replay.retries + replay.later_retries > 0);
}

/// Reserved memory that grows stops at the card's capacity: the allocator then releases cached blocks.
void end_growth_at(RankEstimate& rank, const Card& card) {
  if (!rank.reserved_grows) return;
  const Bytes most = std::max(rank.peak_allocated, free_for_allocator(rank, card));
  rank.peak_reserved = std::min(rank.peak_reserved, most);
  rank.least_reserved = std::min(rank.least_reserved, most);
  for (PhasePeak& phase : rank.phases) phase.reserved = std::min(phase.reserved, most);
  rank.breakdown.fragmentation = rank.peak_reserved - rank.peak_allocated;
  rank.total = rank.peak_reserved + rank.breakdown.outside_allocator;
  rank.upper_bound = std::max(rank.total, card.memory);
}

/// What a folded rank lacks that doesn't come from its ledger.
void add_totals(RankEstimate& rank, const Job& job, const Cluster& cluster, Bytes outside) {
  rank.first_rank = 0;
  rank.last_rank = data_ranks(job) - 1;
  rank.breakdown.outside_allocator = outside;
  rank.total = rank.peak_reserved + outside;
  rank.upper_bound = upper_bound(rank, job, cluster);
}

RankEstimate fold_by_allocator(const program::Program& program, const Ledger& ledger, const Job& job,
                               const Device& device) {
  if (!is_arena(job.allocator)) return fold(ledger, job, device);
  return fold_in_arena(ledger, arena::script_of(program, arena_granule(device)), device);
}

}  // namespace

program::Program program_of(const Graph& graph, const Job& job, const Cluster& cluster, const RunEffects& run) {
  return program::make_program(
      {.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .run = run, .labels = false});
}

Ledger events_of(const program::Program& program, const CountOptions& options) {
  if (options.abbreviate && has_requests(program)) return requests_of(program, options.steps);
  return ledger_of(program, {.steps = options.steps, .abbreviate = options.abbreviate});
}

Bytes outside_allocator(const Graph& graph, const Job& job, const Cluster& cluster) {
  if (cluster.is_cpu()) return {};
  // DeepSpeed reduces in a group of its own beside that of the loop (deepspeed/utils/groups.py: _clone_world_group).
  const std::int64_t of_shards = job.runtime == Runtime::deepspeed ? 2 : 1;
  const std::int64_t communicators = (job.mesh.shard > 1 ? of_shards : 0) + (job.mesh.replicate > 1 ? 1 : 0) +
                                     (slice_group_ranks(graph, job) > 0 ? 1 : 0);
  return context_of(job.runtime, cluster.card) + communicators * cluster.card.nccl;
}

Bytes upper_bound(const RankEstimate& rank, const Job& job, const Cluster& cluster) {
  if (cluster.is_cpu()) return rank.total + Bytes{rank.peak_requested.n / kCpuMarginDivisor};
  if (!cluster.confidence.is_asked()) {
    return rank.total + Bytes{rank.peak_reserved.n / kReservedMarginDivisor} +
           Bytes{rank.breakdown.outside_allocator.n / kOutsideMarginDivisor};
  }
  const Margins margins = margins_of(job, cluster.confidence);
  return rank.total + share_of(rank.peak_reserved, margins.reserved_per_million) + margins.outside;
}

bool exceeds_card(Bytes reserved, Bytes outside_allocator, const Job& job, const Cluster& cluster) {
  RankEstimate rank;
  rank.breakdown.outside_allocator = outside_allocator;
  rank.total = reserved + outside_allocator;
  rank.peak_requested = rank.peak_allocated = rank.peak_reserved = reserved;
  return upper_bound(rank, job, cluster) > cluster.card.memory;
}

RankEstimate estimate_rank(const Graph& graph, const Job& job, const Cluster& cluster, const CountOptions& options,
                           bool retries) {
  return estimate_program(program_of(graph, job, cluster, options.run), graph, job, cluster, options, retries);
}

RankEstimate estimate_program(const program::Program& program, const Graph& graph, const Job& job,
                              const Cluster& cluster, const CountOptions& options, bool retries) {
  const Ledger ledger = events_of(program, options);
  RankEstimate rank = fold_by_allocator(program, ledger, job, cluster.card.device);
  add_totals(rank, job, cluster, outside_allocator(graph, job, cluster));
  if (!cluster.is_cpu()) {
    if (retries || rank.total <= cluster.card.memory) add_retries(rank, ledger, job, cluster.card);
    end_growth_at(rank, cluster.card);
  }
  add_host(rank, program, cluster);
  if (options.run.clip || scales_loss(job)) add_clip_phase(rank);
  return rank;
}

std::optional<RankEstimate> estimate_rank_below(const Graph& graph, const Job& job, const Cluster& cluster,
                                                const CountOptions& options, Bytes below) {
  if (!cluster.is_cpu() && below <= outside_allocator(graph, job, cluster)) return std::nullopt;
  return estimate_program_below(program_of(graph, job, cluster, options.run), graph, job, cluster, {options, below});
}

std::optional<RankEstimate> fold_in_arena_below(const program::Program& program, const Ledger& ledger,
                                                const Device& device, Bytes below) {
  if (arena::most_alive(program, arena_granule(device)) >= below) return std::nullopt;
  RankEstimate rank = fold_in_arena(ledger, arena::script_of(program, arena_granule(device)), device);
  return rank.peak_reserved < below ? std::optional(std::move(rank)) : std::nullopt;
}

void complete_below(RankEstimate& rank, const Ledger& ledger, const Job& job, const Cluster& cluster,
                    const CompleteBelow& end) {
  add_totals(rank, job, cluster, end.outside);
  const Card& card = cluster.card;
  const AllocatorSettings settings = allocator_settings(job.allocator);
  if (rank.total <= card.memory && !rank.reserved_grows && settings.memory_fraction < 1) {
    rank.gives_back = !fits_without_retries(ledger, settings, card.memory, free_for_allocator(rank, card));
  } else if (end.retries && rank.total > card.memory && rank.peak_requested + end.outside <= card.memory) {
    add_retries(rank, ledger, job, card);
  }
  end_growth_at(rank, card);
}

std::optional<RankEstimate> estimate_program_below(const program::Program& program, const Graph& graph, const Job& job,
                                                   const Cluster& cluster, const CountBelow& count) {
  const auto& [options, below, retries] = count;
  if (cluster.is_cpu()) {
    RankEstimate rank = estimate_program(program, graph, job, cluster, options);
    return rank.total < below ? std::optional(std::move(rank)) : std::nullopt;
  }
  const Bytes outside = outside_allocator(graph, job, cluster);
  if (below <= outside) return std::nullopt;
  const Ledger ledger = events_of(program, options);
  std::optional<RankEstimate> rank = is_arena(job.allocator)
                                         ? fold_in_arena_below(program, ledger, cluster.card.device, below - outside)
                                         : fold_below(ledger, job, below - outside);
  if (!rank) return std::nullopt;
  complete_below(*rank, ledger, job, cluster, {outside, retries});
  add_host(*rank, program, cluster);
  if (options.run.clip || scales_loss(job)) add_clip_phase(*rank);
  return rank;
}

}  // namespace vramfit
