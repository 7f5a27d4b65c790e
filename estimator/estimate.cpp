#include "estimator/estimate.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/digits_apart.h"
#include "base/error.h"
#include "estimator/allocator/ledger_player.h"
#include "estimator/allocator/ledger_replay.h"
#include "estimator/allocator/requests.h"
#include "estimator/bound/margins.h"
#include "estimator/host_memory.h"
#include "estimator/provenance.h"
#include "estimator/rank_estimate.h"
#include "job/cluster/context.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/run/rehearsal_command.h"
#include "job/sharding/sharding.h"
#include "job/stacks/stacks.h"
#include "model_specs/parameters.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/ops/fp8.h"
#include "program/readers/bytes.h"
#include "program/schedules/schedule.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"
#include "program/stages/units_layout.h"

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

program::Program program_of(const Graph& graph, const Job& job, const Cluster& cluster, const RunEffects& run) {
  return program::make_program(
      {.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .run = run, .labels = false});
}

/// What the allocator is asked for. Labels are needed only where a step keeps something for good.
Ledger events_of(const program::Program& program, const CountOptions& options) {
  if (options.abbreviate && has_requests(program)) return requests_of(program, options.steps);
  return ledger_of(program, {.steps = options.steps, .abbreviate = options.abbreviate});
}

RankEstimate fold_by_allocator(const program::Program& program, const Ledger& ledger, const Job& job,
                               const Device& device) {
  if (!is_arena(job.allocator)) return fold(ledger, job, device);
  return fold_in_arena(ledger, arena::script_of(program, arena_granule(device)), device);
}

/// Packing takes far longer than finding out what lives at once.
std::optional<RankEstimate> fold_in_arena_below(const program::Program& program, const Ledger& ledger,
                                                const Device& device, Bytes below) {
  if (arena::most_alive(program, arena_granule(device)) >= below) return std::nullopt;
  RankEstimate rank = fold_in_arena(ledger, arena::script_of(program, arena_granule(device)), device);
  return rank.peak_reserved < below ? std::optional(std::move(rank)) : std::nullopt;
}

/// Said if the replay never returns to an earlier state and keeps reserving more.
std::string growth_text() {
  return fmt::format(
      "reserved memory grows with every step and did not settle in {} steps: expect the card to fill up and the "
      "allocator to release cached blocks",
      kMostPasses);
}

/// How much the order of cudaMalloc's addresses changes reserved memory; "" if it doesn't.
std::string band_text(const RankEstimate& rank) {
  if (rank.least_reserved == rank.peak_reserved) return "";
  return fmt::format("{} to {} reserved ({:.1f} %), by the order of cudaMalloc's addresses",
                     format_gib(rank.least_reserved), format_gib(rank.peak_reserved), 100 * band_width(rank));
}

/// How many gathered units the schedule holds at once; "" if none is sharded.
std::string gathered_text(const Estimate& e, const Graph& graph) {
  const UnitLayout layout = lay_out_units(graph, e.job);
  if (e.job.runtime != Runtime::vramfit || layout.shards == 1) return "";
  Job once = e.job;
  once.accumulation = 1;  // all micro-batches gather the same
  const int live = peak_live_units(make_vramfit_schedule(
      {.job = once, .graph = graph, .layout = layout, .segment_has_backward = segments_with_backward(graph, once)}));
  return fmt::format("at most {} of {} units gathered at once", live, layout.units.size());
}

/// What the arena's block takes beyond what lives in it; "" without one.
std::string arena_text(const Estimate& e) {
  const RankEstimate& rank = e.ranks.front();
  if (!is_arena(e.job.allocator) || rank.peak_allocated.n <= 0) return "";
  const double beyond = 100 * static_cast<double>((rank.peak_reserved - rank.peak_allocated).n) /
                        static_cast<double>(rank.peak_allocated.n);
  return fmt::format("one block of {} for all of a rank's memory, {:.2f} % above the most that lives at once",
                     format_gib(rank.peak_reserved), beyond);
}

void add_assumptions(Estimate& e, const ModelSpec& spec, const Graph& graph) {
  if (!spec.note.empty()) e.assumptions.push_back(spec.note);
  const double dropout = std::max({spec.dropout, spec.embedding_dropout, spec.attention_dropout});
  if (dropout > 0 && !uses_accelerate(e.job)) {
    e.assumptions.push_back(fmt::format("dropout off (the model's configuration asks for {})", dropout));
  }
  if (graph.masked_lm && has_trainer(e.job))
    e.assumptions.emplace_back("AutoModelForMaskedLM, on rows without padding and without token_type_ids");
  if (e.job.modeling == Modeling::trl_grpo) {
    e.assumptions.emplace_back(reuses_completions(e.job)
                                   ? "no generation; prompts of one token; a step that begins with new completions: "
                                     "others need no more, and take less time"
                                   : "no generation; prompts of one token");
  }
  if (has_pairs(e.job)) e.assumptions.emplace_back("a batch of N is N pairs: 2 N full rows");
  if (!spec.quantization.empty()) {
    e.assumptions.push_back(fmt::format("weights are {} as trained, not {} as stored",
                                        dtype_name(e.job.precision.storage), spec.quantization));
  }
  if (const std::string gathered = gathered_text(e, graph); !gathered.empty()) e.assumptions.push_back(gathered);
  if (const std::string note = fp8_note(graph, e.job); !note.empty()) e.assumptions.push_back(note);
  if (const std::string arena = arena_text(e); !arena.empty()) e.assumptions.push_back(arena);
  if (e.cluster.is_cpu()) return;
  e.assumptions.push_back(outside_text(e.ranks.front().breakdown.outside_allocator, e.job, e.cluster));
  if (e.job.sends_fp8_gradients) {
    e.assumptions.emplace_back("without what NCCL allocates when ranks first exchange FP8 gradients (not measured)");
  }
  if (e.cluster.confidence.is_asked() && !e.ranks.front().reserved_grows) {
    e.margins = margins_of(e.job, e.cluster.confidence);
    e.assumptions.push_back(margins_text(*e.margins));
  }
  if (const std::string band = band_text(e.ranks.front()); !band.empty()) e.assumptions.push_back(band);
  e.assumptions.push_back(checked_text(e.job, e.cluster));
}

/// "83.20 GiB of 79.10 GiB a rank; the peak is in backward, most of it activations (41.20 GiB)".
std::string explain(const RankEstimate& rank, Bytes capacity) {
  const auto peak = std::ranges::max_element(rank.phases, {}, &PhasePeak::allocated);
  const auto* const most = std::ranges::max_element(rank.breakdown.categories);
  const auto category = static_cast<Category>(most - rank.breakdown.categories.begin());
  const int digits = digits_apart(rank.total, capacity);
  std::string why =
      fmt::format("{} of {} a rank; the peak is in {}, most of it {} ({})", format_gib(rank.total, digits),
                  format_gib(capacity, digits), phase_name(peak->phase), category_name(category), format_gib(*most));
  if (rank.gives_back) why += "; allocator retries: " + retries_text(rank);
  if (rank.reserved_grows) why += "; " + growth_text();
  if (band_width(rank) > kBandSaid) why += "; " + band_text(rank);
  return why;
}

/// Rank 0 stages rows of the others while it loads; otherwise all ranks hold the same.
void set_rank0_apart(Estimate& e, const Graph& graph, const RunEffects& run) {
  if (e.job.load != Load::rank0 || run.resumes || lay_out_units(graph, e.job).shards == 1) return;
  Job others = e.job;
  others.load = Load::each;
  RankEstimate rest = estimate_rank(graph, others, e.cluster, {.run = run});
  rest.first_rank = 1;
  rest.coords = {.replicate = 0, .shard = 1};
  e.ranks.front().last_rank = 0;
  e.ranks.push_back(std::move(rest));
}

/// What would answer instead: a recipe, or the person's own script on simulated cards. CPU ranks have none.
std::string answer_hint(const Cluster& cluster, const std::string& answered_by, const char* verb = "answers") {
  if (cluster.is_cpu()) return "";
  if (!answered_by.empty()) return fmt::format("; this {} it: {}", verb, answered_by);
  return fmt::format("; your own script {} it: {}", verb, rehearsal_of(cluster));
}

Estimate begun(const ModelSpec& spec, const Job& job, const Cluster& cluster) {
  Estimate e;
  e.model_name = spec.name;
  e.parameters = parameter_count(spec);
  e.cluster = cluster;
  e.capacity = cluster.card.memory;
  e.assumptions = cluster.notes;
  e.job = resolve_job(job, spec, cluster, e.assumptions);
  e.stack = stack_of(e.job).name;
  return e;
}

void set_speed(Estimate& e, const program::Program& program, const Graph& graph, const EstimateOptions& options) {
  if (options.speed_with == nullptr) return;
  e.speed = speed_of(program, graph, e.job, e.cluster, *options.speed_with);
  e.figures = options.speed_with->figures;
  e.assumptions.push_back(fmt::format("speed: from {} figures: {} (--json lists them; docs/time-model.md)",
                                      options.speed_with->figures.size(), origins_text(*options.speed_with)));
  if (const std::string note = network_note(e.cluster); !note.empty()) e.assumptions.push_back(note);
}

void estimate_ranks(Estimate& e, const ModelSpec& spec, const EstimateOptions& options, bool has_default_loss) {
  require_rules(e.job, e.cluster);
  if (saves_anything(options.run) && e.job.runtime != Runtime::vramfit) {
    throw NotModelled(fmt::format("--save-kind with --runtime {}", job_field_named("runtime").get(e.job)));
  }
  const Graph graph = training_graph(spec, e.job);
  std::optional<program::Program> made;
  if (options.program == nullptr) made = program_of(graph, e.job, e.cluster, options.run);
  const program::Program& program = made ? *made : *options.program;
  e.ranks = {estimate_program(program, graph, e.job, e.cluster, {.run = options.run})};
  RankEstimate& rank = e.ranks.front();
  add_host_loading(rank, spec, graph, e.job, program);
  e.verdict = verdict_of(rank, e.capacity);
  e.why = explain(rank, e.capacity);
  add_assumptions(e, spec, graph);
  if (!options.run.clip && has_trainer(e.job))
    e.assumptions.emplace_back("the Trainer takes the norm of gradients for its log, clipped or not");
  if (e.job.runtime == Runtime::deepspeed && e.job.sharding != "full-shard") {
    e.assumptions.emplace_back(
        "weights are flattened on the GPU (DeepSpeed does it in host memory where the card has no room for both "
        "copies, so that loading needs less there)");
  }
  if (e.job.optimizer_implementation == OptimizerImplementation::torchao)
    e.assumptions.emplace_back(
        "without the tuning of torchao's kernels in the first update (which may exceed the peak until then by at most "
        "the size of the card's L2 cache)");
  set_rank0_apart(e, graph, options.run);
  e.host_bytes = host_bytes_of_node(e, graph, options.run);
  judge_host_memory(e, spec, graph, options.run);
  if (options.suggestions) e.suggestions = suggest(e, {spec, graph, program, options.run, has_default_loss});
  set_speed(e, program, graph, options);
}

/// Of a job whose memory has no rules, if its time has.
void estimate_time(Estimate& e, const ModelSpec& spec, const EstimateOptions& options) {
  if (options.speed_with == nullptr) return;
  try {
    require_time_rules(e.job, e.cluster);
    const Graph graph = training_graph(spec, e.job);
    set_speed(e, program_of(graph, e.job, e.cluster, options.run), graph, options);
  } catch (const NotModelled&) {  // the answer says what has no rules
    e.speed.reset();
  }
}

}  // namespace

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
  add_totals(*rank, job, cluster, outside);
  const Card& card = cluster.card;
  const AllocatorSettings settings = allocator_settings(job.allocator);
  if (rank->total <= card.memory && !rank->reserved_grows && settings.memory_fraction < 1) {
    rank->gives_back = !fits_without_retries(ledger, settings, card.memory, free_for_allocator(*rank, card));
  } else if (retries && rank->total > card.memory && rank->peak_requested + outside <= card.memory) {
    add_retries(*rank, ledger, job, card);
  }
  end_growth_at(*rank, card);
  add_host(*rank, program, cluster);
  if (options.run.clip || scales_loss(job)) add_clip_phase(*rank);
  return rank;
}

Estimate estimate(const ModelSpec& spec, const Job& job, const Cluster& cluster, const EstimateOptions& options) {
  Estimate e = begun(spec, job, cluster);
  e.run = options.run;
  try {
    estimate_ranks(e, spec, options, std::holds_alternative<UnsetLoss>(job.loss));
  } catch (const NotModelled& feature) {
    e.verdict = Verdict::not_modelled;
    e.lacking = feature.feature_name;
    const bool fails = dynamic_cast<const LibraryFails*>(&feature) != nullptr;
    e.why = e.lacking + answer_hint(e.cluster, options.answered_by, fails ? "shows" : "answers");
    e.ranks.clear();
    estimate_time(e, spec, options);
  }
  return e;
}

Estimate estimate_without_rules(const ModelSpec& spec, const Job& job, const Cluster& cluster, const std::string& stack,
                                const std::string& why, const std::string& answered_by) {
  Estimate e = begun(spec, job, cluster);
  e.stack = stack;
  e.lacking = why;
  e.why = why + answer_hint(cluster, answered_by);
  return e;
}

std::optional<RankEstimate> rank_if_it_fits(const ModelSpec& spec, const Job& job, const Cluster& cluster,
                                            const EstimateOptions& options) {
  std::vector<std::string> notes;
  const Job resolved = resolve_job(job, spec, cluster, notes);
  require_rules(resolved, cluster);
  const Graph graph = training_graph(spec, resolved);
  const program::Program program = program_of(graph, resolved, cluster, options.run);
  std::optional<RankEstimate> rank =
      estimate_program_below(program, graph, resolved, cluster, {{.run = options.run}, cluster.card.memory + Bytes{1}});
  if (rank) add_host_loading(*rank, spec, graph, resolved, program);
  return rank && verdict_of(*rank, cluster) == Verdict::fits ? std::move(rank) : std::nullopt;
}

}  // namespace vramfit
