// The answer to "what will this job need?": peaks per rank and phase, their breakdown, and a verdict.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "estimator/bound/margins.h"
#include "estimator/time/speed.h"
#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "model_specs/spec.h"
#include "program/files/rank_memory.h"
#include "program/ledger/ledger.h"
#include "program/program.h"
#include "program/run_effects.h"

namespace vramfit {

enum class Verdict { fits, at_risk, does_not_fit, not_modelled };

/// Whether `host` bytes of a node's ranks are more than it has; false where that isn't stated.
bool exceeds_host_memory(Bytes host, const Cluster& cluster);

std::string_view verdict_name(Verdict verdict);

/// How much of the rank's managed memory has room on the card beside its total; no card has to hold it.
Bytes managed_on_card(const RankEstimate& rank, Bytes capacity);

/// A single change and what the job would need with it, re-estimated.
struct Suggestion {
  std::string change;  // "--checkpointing full"
  Bytes total_after;   // of the worst rank
  Bytes saved;
  Verdict verdict = Verdict::does_not_fit;
};

/// What the same job would need under another stack.
struct StackNeed {
  std::string stack;  // row of stacks() (job/stacks/stacks.h)
  Bytes total;        // of the worst rank
  Verdict verdict = Verdict::not_modelled;
  std::string lacking = {};      // what has no rules there, when not_modelled
  std::string answered_by = {};  // the command that answers then, if any; else the flags of this figure
};

struct Estimate {
  std::string model_name;
  std::string stack;  // for which it holds: a row of stacks()
  std::int64_t parameters = 0;
  Job job;              // with every default filled in
  RunEffects run = {};  // what was counted besides the job
  Cluster cluster;
  std::vector<RankEstimate> ranks;
  int worst = 0;
  Bytes capacity;
  Verdict verdict = Verdict::not_modelled;
  std::string why;      // one sentence; when not_modelled, what has no rules and what answers instead
  std::string lacking;  // what has no rules, when not_modelled
  std::vector<Suggestion> suggestions;
  std::vector<std::string> assumptions;
  std::optional<Margins>
      margins;                  // of upper bounds, with --confidence; none where reserved memory grows with every step
  Bytes host_bytes;             // per node
  std::optional<Speed> speed;   // if EstimateOptions asks for it
  std::vector<Figure> figures;  // that it follows from
  std::vector<StackNeed> others;
  std::string own_rehearsal = {};  // the command that rehearses the files that the job was read from; "": none does
};

/// The rank that needs most; the estimate must have ranks.
inline const RankEstimate& worst_rank(const Estimate& estimate) {
  return estimate.ranks.at(static_cast<std::size_t>(estimate.worst));
}

/// "3 in the first two steps, then up to 1 per step"
std::string retries_text(const RankEstimate& rank);

/// How far least_reserved lies below peak_reserved, as a share of it; 0 when it isn't known.
double band_width(const RankEstimate& rank);
inline constexpr double kBandSaid = 0.05;  // a wider band is mentioned in the verdict

struct EstimateOptions {
  bool suggestions = true;
  RunEffects run = {};
  const Efficiency* speed_with = nullptr;     // figures of the card to predict the speed with; null: no speed
  std::string answered_by = {};               // a command that answers where there are no rules; "": a rehearsal's
  const program::Program* program = nullptr;  // of the job for this run, where there is one already
};

/// Never throws for a job that doesn't fit or has no rules: those are verdicts.
Estimate estimate(const ModelSpec& spec, const Job& job, const Cluster& cluster, const EstimateOptions& options);

/// The estimate of a job on a stack without rules: not modelled, for the reason `why`; `answered_by` as in the options.
Estimate estimate_without_rules(const ModelSpec& spec, const Job& job, const Cluster& cluster, const std::string& stack,
                                const std::string& why, const std::string& answered_by);

/// Folds a ledger into peaks and breakdown (peak tick, categories that sum exactly), on a card without a limit. With
/// the native allocator the peaks are the highest over the orders of addresses that placements_of names. Repeats are
/// played until the allocator's state repeats. What exceeds 4 PiB is folded without the allocator: no card holds it.
RankEstimate fold(const Ledger& ledger, const Job& job, const Device& device);

}  // namespace vramfit
