#include "estimator/changes/suggestions.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/process/in_parallel.h"
#include "estimator/changes/result_changes.h"
#include "estimator/host_memory.h"
#include "estimator/rank_estimate.h"
#include "job/cluster/cluster_text.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/resolve_job.h"
#include "job/sharding/sharding.h"
#include "job/stacks/sharded_instead.h"
#include "model_specs/loss_layout.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/expand.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"
#include "program/stages/optimizer_in_backward.h"

namespace vramfit {

namespace {

constexpr std::size_t kMostSuggestions = 6;
// Each suggestion is an estimate. A model of more segments than twice the deepest published one's 126 layers gets the
// first few, so that an answer takes less than two seconds.
constexpr std::size_t kManySegments = 256, kFewSuggestions = 3;
constexpr std::int64_t kSuggestedChunks = 8;
constexpr const char* kChangesResult = " (changes the result)";

/// A job and cluster with one change, and the change as flags.
struct Change {
  std::string flags;
  Job job;
  Cluster cluster;
  bool same_program = false;     // it changes nothing that the job does itself
  bool concerns_logits = false;  // and nothing but them: of use only where some are there at the peak
};

using Maker = std::optional<Change> (*)(const Estimate& e);

std::optional<Change> checkpoint(const Estimate& e) {
  if (std::holds_alternative<FullCheckpointing>(e.job.checkpointing)) return std::nullopt;
  Change change{"--checkpointing full", e.job, e.cluster};
  change.job.checkpointing = FullCheckpointing{};
  return change;
}

std::optional<Change> chunk_loss(const Estimate& e) {
  if (std::holds_alternative<ChunkedLoss>(e.job.loss)) return std::nullopt;
  Change change{fmt::format("--loss chunked:{}", kSuggestedChunks), e.job, e.cluster, false, true};
  change.job.loss = ChunkedLoss{kSuggestedChunks};
  return change;
}

/// The same global batch in smaller micro-batches.
std::optional<Change> halve_micro_batch(const Estimate& e) {
  if (e.job.micro_batch % 2 != 0) return std::nullopt;
  Change change{"", e.job, e.cluster};
  change.job.micro_batch /= 2;
  change.job.accumulation *= 2;
  change.flags = fmt::format("--micro-batch {} --grad-accum {}", change.job.micro_batch, change.job.accumulation);
  return change;
}

/// Where the library has DDP by another runtime than FSDP2, the runtime changes, too.
std::optional<Change> shard_fully(const Estimate& e) {
  if (e.job.sharding == "full-shard" || e.cluster.cards() == 1) return std::nullopt;
  Change change{"--sharding full-shard", e.job, e.cluster};
  if (std::optional<Job> sharded = sharded_instead(e.job, e.cluster, {})) change.job = *std::move(sharded);
  change.job.sharding = "full-shard";
  change.job.reshard = ReshardByDefault{};
  change.job.mesh = {.replicate = 0, .shard = 0};
  return change;
}

std::optional<Change> reshard_always(const Estimate& e) {
  if (!sharding_named(e.job.sharding).reshard || std::holds_alternative<ReshardAlways>(e.job.reshard) ||
      e.job.mesh.shard == 1) {
    return std::nullopt;
  }
  Change change{"--reshard always", e.job, e.cluster};
  change.job.reshard = ReshardAlways{};
  return change;
}

/// Twice the cards, or the eight of a whole node in place of more than half of it, with the same rows each: smaller
/// shards of everything that is sharded.
std::optional<Change> double_cards(const Estimate& e) {
  if (!sharding_named(e.job.sharding).parameters || e.cluster.cards_per_node > 512) return std::nullopt;
  Change change{"", e.job, e.cluster};
  Cluster& cluster = change.cluster;
  // Assumes eight cards per node.
  std::int64_t& more = cluster.nodes == 1 && cluster.cards_per_node < 8 ? cluster.cards_per_node : cluster.nodes;
  more = cluster.nodes == 1 && cluster.cards_per_node > 4 && cluster.cards_per_node < 8 ? 8 : 2 * more;
  cluster.text = cluster_text(cluster.nodes, cluster.cards_per_node, card_text(e.cluster.text));
  change.flags = "--gpus " + cluster.text;
  change.job.mesh = {.replicate = 0, .shard = 0};
  change.job.global_batch = 0;
  return change;
}

/// Gradients of one unit or two instead of all.
std::optional<Change> update_in_backward(const Estimate& e) {
  if (e.job.runtime != Runtime::vramfit || e.job.optimizer_in_backward) return std::nullopt;
  Change change{"--optimizer-in-backward on", e.job, e.cluster};
  change.job.optimizer_in_backward = true;
  return change;
}

/// Expandable segments leave fewer gaps; other allocator settings stay as they are.
std::optional<Change> expand_segments(const Estimate& e) {
  if (e.cluster.is_cpu() || e.job.allocator != "native") return std::nullopt;
  Change change{"--allocator expandable", e.job, e.cluster, true};
  change.job.allocator = "expandable";
  return change;
}

constexpr std::array<Maker, 8> kSameResult{checkpoint,     chunk_loss,         halve_micro_batch, shard_fully,
                                           reshard_always, update_in_backward, double_cards,      expand_segments};

/// The smallest change of each kind. A smaller global batch has fewer micro-batches of the same size.
std::vector<Change> changes_of_result(const Estimate& e, const ModelSpec& spec) {
  std::vector<Change> changes;
  for (const ResultChange& kind : result_changes()) {
    std::vector<Job> choices = kind.choices(e.job, spec, {});
    if (choices.empty()) continue;
    Job& job = choices.front();
    std::string flags = fmt::format("{} {}", flag_of(job_field_named(kind.field)), kind.value(job));
    if (job.micro_batch == 0) {
      job.micro_batch = e.job.micro_batch;
      job.accumulation = e.job.accumulation / 2;
      flags += fmt::format(" --grad-accum {}", job.accumulation);
    }
    changes.push_back({flags + kChangesResult, std::move(job), e.cluster});
  }
  return changes;
}

/// Each is what its flags make of the job when they are added to those of the user.
std::vector<Change> changes_of(const Estimate& e, const ModelSpec& spec, bool has_default_loss) {
  std::vector<Change> changes;
  for (const Maker maker : kSameResult) {
    if (std::optional<Change> change = maker(e)) changes.push_back(*std::move(change));
  }
  std::ranges::move(changes_of_result(e, spec), std::back_inserter(changes));
  if (has_default_loss) {
    for (Change& change : changes) {
      if (loss_options(change.job) == loss_options(e.job)) change.job.loss = UnsetLoss{};
    }
  }
  return changes;
}

/// How many steps show the peak: runtime vramfit makes states at load, PyTorch's optimizers in the first step.
int steps_to_peak(const Job& job) { return job.runtime == Runtime::vramfit ? 1 : 2; }

/// Whether the program has as much requested at once.
bool requests(const program::Program& program, Bytes as_much) {
  const bool is_plain = program.blocks.empty() &&
                        std::ranges::all_of(program.sections, [](const auto& section) { return section.times == 1; });
  if (!is_plain) return folded_peaks(program, Bytes{1}).requested >= as_much;
  std::int64_t requested = 0;  // section by section, as folded_peaks() adds them up
  bool is_as_much = false;
  const auto add = [&](int buffer, int sign) {
    const program::Buffer& own = program.main.buffers[static_cast<std::size_t>(buffer)];
    if (own.space != program::Space::device) return;
    requested = checked_add(requested, sign * own.bytes.n);
    is_as_much = is_as_much || requested >= as_much.n;
  };
  for (const program::Section& section : program.sections) {
    for (std::size_t i = section.begin; i < section.end && !is_as_much; ++i) {
      program::for_each_event(program.main, program.main.instructions[i], add);
    }
  }
  return is_as_much;
}

/// Whether the changed job requests as much at once as the present one: what it reserves less would be an accident of
/// fragments, and its events need not be looked at. Only another allocator is about fragments.
bool requests_as_much(const program::Program& program, const Job& changed, const Estimate& e) {
  return changed.allocator == e.job.allocator && requests(program, e.ranks.front().peak_requested);
}

/// Whether a run does nothing besides training.
bool is_plain(const RunEffects& run) { return !run.resumes && !saves_anything(run); }

/// A changed job that can be made, and its program.
struct Walked {
  Job job;
  CountOptions options;
  std::optional<Graph> other;               // of its own
  std::optional<program::Program> program;  // none: that of the job as it is
};

/// The graph of a changed job where it isn't that of the job as it is.
std::optional<Graph> other_graph(const Job& changed, const Job& job, const Estimated& from) {
  if (loss_options(changed) == loss_options(job) && has_adapters(changed) == has_adapters(job)) return std::nullopt;
  return has_adapters(changed) ? training_graph(from.spec, changed) : with_loss(from.graph, loss_options(changed));
}

/// Nothing if the changed job can't be made.
std::optional<Walked> walked(const Change& change, const Job& job, const Estimated& from) {
  try {
    std::vector<std::string> notes;
    Walked walked{
        .job = resolve_job(change.job, from.spec, change.cluster, notes), .options = {}, .other = {}, .program = {}};
    require_rules(walked.job, change.cluster);
    require_optimizer_in_backward(walked.job, from.run.clip);
    walked.options = {.run = {.clip = from.run.clip}, .steps = steps_to_peak(walked.job)};
    if (change.same_program && is_plain(from.run)) {
      walked.options.run = from.run;
      return walked;
    }
    walked.other = other_graph(walked.job, job, from);
    walked.program = program::make_program({.graph = walked.other ? *walked.other : from.graph,
                                            .job = walked.job,
                                            .device = change.cluster.card.device,
                                            .coords = {},
                                            .run = walked.options.run,
                                            .labels = false,
                                            .calls = false});
    return walked;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// How the changed job would do, if it can be counted, and needs less. `program`: of the job as it is.
std::optional<RankEstimate> rank_of(const Walked& walked, const Cluster& cluster, const Estimate& e,
                                    const Estimated& from, const program::Program& program) {
  try {
    const Graph& graph = walked.other ? *walked.other : from.graph;
    if (walked.program && requests_as_much(*walked.program, walked.job, e)) return std::nullopt;
    const program::Program& own = walked.program ? *walked.program : program;
    std::optional<RankEstimate> rank =
        estimate_program_below(own, graph, walked.job, cluster, {walked.options, e.ranks.front().total, true});
    if (rank) add_host_loading(*rank, from.spec, graph, walked.job, own);
    return rank;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// `rank`: with the change.
Suggestion suggestion(const Change& change, const Estimate& e, const RankEstimate& rank) {
  return {.change = change.flags,
          .total_after = rank.total,
          .saved = e.ranks.front().total - rank.total,
          .verdict = verdict_of(rank, change.cluster)};
}

bool has_many_segments(const Estimated& from) { return from.graph.segments.size() > kManySegments; }

/// Copies over PCIe and an update on the CPU take time, so nothing leaves the card where the job fits.
bool may_offload(const Estimate& e, const Estimated& from) {
  return e.verdict != Verdict::fits && !e.cluster.is_cpu() && e.job.offload.empty() && !saves_anything(from.run) &&
         !has_many_segments(from);
}

/// Each kind leaves less on the card than the one before it, and takes more time and more host memory: the first one
/// with which the job fits, or else the last. Of those that a runtime doesn't have nothing is said, nor of what the
/// nodes' host memory doesn't hold. Where nobody said how much that is, the change says how much it takes.
std::optional<Suggestion> offload(const Estimate& e, const Estimated& from, const program::Program& program) {
  std::optional<Suggestion> last;
  for (const char* const kind : {"optimizer", "params"}) {
    Change change{fmt::format("--offload {}", kind), e.job, e.cluster};
    change.job.offload = {kind};
    if (from.has_default_loss) change.job.loss = UnsetLoss{};
    const std::optional<Walked> changed = walked(change, e.job, from);
    const std::optional<RankEstimate> rank =
        changed ? rank_of(*changed, change.cluster, e, from, program) : std::nullopt;
    if (!rank) continue;
    const Bytes host = e.cluster.cards_per_node * rank->host;
    if (exceeds_host_memory(host, e.cluster)) continue;
    change.flags += fmt::format(" ({} GiB of host memory)", ceil_div(host.n, kGiB.n));
    last = suggestion(change, e, *rank);
    if (last->verdict == Verdict::fits) break;
  }
  return last;
}

}  // namespace

/// A kind of change, and what has been done of it.
struct Suggestions::Change {
  explicit Change(vramfit::Change change) : changed(std::move(change)) {}

  vramfit::Change changed;
  std::atomic<bool> is_walked = false;
  bool is_made = false;
  std::optional<Walked> walked;
  std::optional<Suggestion> suggestion;
};

Suggestions::Suggestions(const Estimate& e, Estimated from) : from_(from), job_(e.job) {
  for (vramfit::Change& change : changes_of(e, from_.spec, from_.has_default_loss)) {
    changes_.emplace_back(std::move(change));
  }
}

Suggestions::~Suggestions() = default;

/// The engine's are done before threads would have memory of their own.
std::size_t Suggestions::parts_ahead() const {
  if (job_.runtime == Runtime::vramfit) return 0;
  return 2 * (has_many_segments(from_) ? std::min(changes_.size(), kFewSuggestions) : changes_.size());
}

void Suggestions::do_ahead(std::size_t part, const std::optional<Needs>& job) {
  const std::size_t count = parts_ahead() / 2;
  Change& change = changes_[part % count];
  if (change.changed.concerns_logits) return;
  if (part < count) {
    change.walked = walked(change.changed, job_, from_);
    change.is_walked = true;
  } else if (job && change.is_walked) {
    make(change, *job);
  }
}

/// Unless that has been done.
void Suggestions::make(Change& change, const Needs& job) const {
  if (std::exchange(change.is_made, true)) return;
  if (!change.is_walked) change.walked = walked(change.changed, job_, from_);
  const std::optional<Walked> with = std::exchange(change.walked, std::nullopt);
  if (!with) return;
  const std::optional<RankEstimate> rank = rank_of(*with, change.changed.cluster, job.estimate, from_, job.program);
  if (rank) change.suggestion = suggestion(change.changed, job.estimate, *rank);
}

std::vector<Suggestion> Suggestions::made(const Estimate& e, const program::Program& program) {
  const Breakdown& at_peak = e.ranks.front().breakdown;
  const bool has_logits = at_peak.categories[static_cast<std::size_t>(Category::logits_and_loss)].n != 0;
  std::vector<Change*> changes;
  for (Change& change : changes_) {
    if (has_logits || !change.changed.concerns_logits) changes.push_back(&change);
  }
  if (has_many_segments(from_)) changes.resize(std::min(changes.size(), kFewSuggestions));
  std::vector<std::optional<Suggestion>> made(changes.size() + (may_offload(e, from_) ? 1 : 0));
  const auto make = [&](std::size_t number) {
    if (number == changes.size()) {
      made[number] = offload(e, from_, program);
      return;
    }
    this->make(*changes[number], {e, program});
    made[number] = changes[number]->suggestion;
  };
  if (e.job.runtime == Runtime::vramfit) {
    for (std::size_t number = 0; number < made.size(); ++number) make(number);
  } else {
    in_parallel(made.size(), make);
  }
  std::vector<Suggestion> suggestions;
  for (std::optional<Suggestion>& each : made) {
    if (each) suggestions.push_back(*std::move(each));
  }
  std::ranges::stable_sort(suggestions, std::greater{}, &Suggestion::saved);
  if (suggestions.size() > kMostSuggestions) suggestions.resize(kMostSuggestions);
  return suggestions;
}

}  // namespace vramfit
