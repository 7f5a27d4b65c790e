#include "estimator/estimate.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/process/in_parallel.h"
#include "base/text/digits_apart.h"
#include "estimator/allocator/ledger_player.h"
#include "estimator/bound/margins.h"
#include "estimator/changes/suggestions.h"
#include "estimator/host_memory.h"
#include "estimator/provenance.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/run/rehearsal_command.h"
#include "job/stacks/stacks.h"
#include "model_specs/parameters.h"
#include "program/not_modelled.h"
#include "program/ops/fp8.h"
#include "program/schedules/schedule.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"
#include "program/stages/units_layout.h"

namespace vramfit {
namespace {

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
  if (e.job.packs_documents) {
    e.assumptions.push_back(fmt::format("a micro-batch is one row of {} tokens, packed of {} documents or more",
                                        checked_mul(e.job.micro_batch, e.job.sequence),
                                        std::max<std::int64_t>(2, e.job.micro_batch)));
  }
  if (has_dpo_reference_under_fsdp(e.job)) {
    e.assumptions.emplace_back(
        "both models are passed to DPOTrainer as objects: a reference loaded by name is spread over all cards under "
        "FSDP, and the first step fails (TRL 1.16)");
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

/// Estimates the job, and beside it does what suggestions can be begun with. `needs`: what the job does then.
void beside_suggestions(std::optional<Suggestions>& suggestions, const std::function<void()>& estimate_job,
                        const std::function<Suggestions::Needs()>& needs) {
  const std::size_t parts = suggestions ? suggestions->parts_ahead() : 0;
  if (parts == 0) return estimate_job();
  std::atomic<bool> are_wanted = true, is_estimated = false;
  in_parallel(1 + parts, [&](std::size_t part) {
    if (part > 0) {
      if (are_wanted) suggestions->do_ahead(part - 1, is_estimated ? std::optional(needs()) : std::nullopt);
      return;
    }
    try {
      estimate_job();
      is_estimated = true;
    } catch (...) {
      are_wanted = false;
      throw;
    }
  });
}

void estimate_ranks(Estimate& e, const ModelSpec& spec, const EstimateOptions& options, bool has_default_loss) {
  require_rules(e.job, e.cluster);
  if (saves_anything(options.run) && e.job.runtime != Runtime::vramfit) {
    throw NotModelled(fmt::format("--save-kind with --runtime {} (--stack vramfit has it; without it, the step is)",
                                  job_field_named("runtime").get(e.job)));
  }
  const Graph graph = training_graph(spec, e.job);
  std::optional<Suggestions> suggestions;
  if (options.suggestions) suggestions.emplace(e, Estimated{spec, graph, options.run, has_default_loss});
  std::optional<program::Program> made;
  const auto estimate_job = [&] {
    if (options.program == nullptr) made = program_of(graph, e.job, e.cluster, options.run);
    const program::Program& own = made ? *made : *options.program;
    e.ranks = {estimate_program(own, graph, e.job, e.cluster, {.run = options.run})};
  };
  const auto needs = [&] { return Suggestions::Needs{e, made ? *made : *options.program}; };
  beside_suggestions(suggestions, estimate_job, needs);
  const program::Program& program = needs().program;
  RankEstimate& rank = e.ranks.front();
  add_host_loading(rank, spec, graph, e.job, program);
  e.verdict = verdict_of(rank, e.capacity);
  e.why = explain(rank, e.capacity);
  add_assumptions(e, spec, graph);
  if (!options.run.clip && e.job.modeling == Modeling::torchtitan_02)
    e.assumptions.emplace_back("gradients are clipped all the same: torchtitan 0.2 has no switch for that");
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
  if (suggestions) e.suggestions = suggestions->made(e, program);
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

}  // namespace vramfit
