// The plan: the fastest job that fits (or the one that needs least), why, and the alternatives. Written to plan.json
// (vramfit/plan@1).
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/time/efficiency.h"
#include "estimator/time/step_time.h"

namespace vramfit {

/// `--allow KIND[:VALUE],...`: changes to the training result that the search may use.
struct Allowed {
  bool any = false;
  std::map<std::string, std::vector<std::string>> kinds;  // "precision" -> {"bf16-pure"}; empty list: every value
};
Allowed parse_allowed(const std::string& text);

struct Candidate {
  Job job;
  Estimate estimate;
  StepTime time;
  double tokens_per_second = 0;    // of the whole job
  std::vector<std::string> needs;  // kinds it would have to be allowed: {"precision:bf16-pure"}
  std::string why;                 // "slower by 12 %: full recomputation", "+3.1 GiB in activations"
};

/// A job that fits by its estimate and that a rehearsal or a run showed not to.
struct RejectedJob {
  Job job;
  std::string why;  // "ran out of memory on phantom GPUs"
};

/// A job with what was set, and the names of its fields that were.
struct SetJob {
  Job job;
  std::vector<std::string> fixed;
};

struct PlanRequest {
  ModelSpec spec;
  Job job;                         // what the user set
  std::vector<std::string> fixed;  // names of the fields the user set: never changed
  Cluster cluster;
  Allowed allowed;
  bool clip = true;
  bool smallest = false;                      // the job that needs least is wanted, not the fastest
  std::vector<RejectedJob> rejected = {};     // resolved; never chosen
  std::optional<Efficiency> efficiency = {};  // --calibration; none: what is known of the card
  bool names_other_clusters = true;           // a larger one that has a plan, a smaller one that is faster
  bool names_host_memory = true;              // where there is no plan: how much of it would do
  bool names_remedies = true;                 // likewise: what would do; else what is missing alone
  std::vector<std::string> decided = {};      // of the fixed fields those that the objective has set
  /// What is set on another cluster: a stack's defaults are others on one GPU than on several. Empty: the same. Throws
  /// an Error for a job that can't be there.
  std::function<SetJob(const Cluster& cluster)> job_on = {};

  /// The same question of another cluster. Throws what job_on throws.
  PlanRequest on(const Cluster& other) const;
  bool is_fixed(std::string_view field) const { return std::ranges::find(fixed, field) != fixed.end(); }
  bool is_decided(std::string_view field) const { return std::ranges::find(decided, field) != decided.end(); }
};

/// What an answer took.
struct SearchCounts {
  std::int64_t combinations = 0;            // of changes that --allow permits, the job as it was asked for among them
  std::int64_t combinations_ruled_out = 0;  // of them, whole, by a lower bound of memory; not counted below
  std::int64_t configurations = 0;          // decided, nearly all of them in groups
  std::int64_t ruled_out = 0;               // of them, by a lower bound of memory
  std::int64_t bounds = 0;                  // of groups and of single configurations
  std::int64_t times = 0;                   // exact, each of a configuration
  std::int64_t estimates = 0;               // likewise, those for alternatives included
  double seconds = 0;
};

/// What one choice of a plan does to the job as it was asked for.
struct PlanStep {
  std::string change;  // "--checkpointing full"; "" for the job as asked for
  Bytes total;         // of the worst rank, with this choice and those before it
  double tokens_per_second = 0;
};

/// What the chosen job needed when it was run on phantom GPUs (`plan --verify phantom`).
struct PlanRehearsal {
  std::int64_t rank = 0;  // that was played, one of the predicted worst
  Bytes predicted_reserved, reserved;
  double seconds = 0;  // that the rehearsal took
};

/// What the same choices would give with a larger global batch, where nobody set one.
struct LargerBatch {
  std::int64_t global_batch = 0, micro_batch = 0, accumulation = 0;
  double tokens_per_second = 0;
};

/// More of the same GPUs, or fewer, of which there is a plan.
struct OtherCluster {
  std::string gpus;  // "2x8xH100-80GB"
  Job job;           // the fastest that fits
  Bytes total;
  double tokens_per_second = 0;
};

/// Where nothing fits: what needs least.
struct ClosestJob {
  Job job;
  Bytes total;  // of the worst rank
};

/// Where nothing fits: flags with which something does, or without which.
struct Remedy {
  std::string flags;  // "--allow method:lora", "without --sharding no-shard"
  std::string note;   // about them, or ""
  Bytes total;        // of the worst rank
  double tokens_per_second = 0;
  std::int64_t cards = 0;
};

/// What `why` says where nothing fits, in parts.
struct NoPlan {
  std::string lacks;               // "no plan fits 2xL4: the smallest needs ..."
  std::string needs;               // its end, "33.79 GiB of the card's 23.52 GiB"
  std::vector<Remedy> remedies;    // in the order in which they were looked for
  std::vector<std::string> notes;  // what else there is to say
};

struct Plan {
  std::optional<Candidate> chosen;              // none: exit 4
  std::optional<ClosestJob> closest;            // where no job is chosen
  std::optional<NoPlan> none;                   // likewise
  std::optional<OtherCluster> larger_cluster;   // likewise; the smallest one of those that were tried
  std::optional<OtherCluster> smaller_cluster;  // a part of the cluster that is faster than all of it, as chosen
  std::optional<LargerBatch> larger;       // of the chosen job; none if its global batch is set, or if none is faster
  std::optional<PlanRehearsal> rehearsal;  // none: it wasn't rehearsed
  std::vector<PlanStep> steps;             // from the job as asked for to the chosen one; none if that is it
  std::vector<Candidate> alternatives;
  std::vector<std::string> not_considered;  // each with the flag that brings it in
  std::string why;  // one sentence, also when there is no plan ("fits with --allow precision:bf16-pure: ...")
  SearchCounts search;
};

Plan make_plan(const PlanRequest& request);

/// To a plan without a job, made for the request while it named neither host memory nor other clusters, adds what it
/// names of them now. The search isn't repeated.
void look_elsewhere(const PlanRequest& request, Plan& plan);

}  // namespace vramfit
