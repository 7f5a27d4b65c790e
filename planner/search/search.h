// What a search asks of jobs: bounds of whole groups, exact times, trials and estimates.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "estimator/allocator/first_step.h"
#include "estimator/least/least_memory.h"
#include "estimator/rank_estimate.h"
#include "estimator/time/least_seconds.h"
#include "planner/plan.h"
#include "planner/search/least_walked.h"
#include "planner/search/model_stages.h"
#include "planner/search/space.h"
#include "program/program.h"

namespace vramfit {

/// A job of the space with its predicted time.
struct Option {
  Job job;
  StepTime time;
  double tokens_per_second = 0;
  std::vector<std::string> needs;
  Bytes least_total;  // at most the total of the job's estimate, in most cases nearly it
  /// Of a runtime that isn't bounded: the most that its program requests at once, and what the allocator reserves for
  /// it at least, without what is outside the allocator.
  std::optional<Bytes> requested = {}, reserved = {};
  /// From which these were read, while the evaluator still keeps it.
  std::weak_ptr<const program::Program> program;
  Place place = {};  // in the search that gave it
};

/// What a search asks of a job: less than an estimate, which takes longer.
struct Trial {
  bool is_modelled = true;
  bool fits = false;  // whether the estimate's verdict is `fits`
  Bytes total;        // of the estimate's worst rank
};

/// What is known of a job from the beginning of its program, or from what that requests.
struct EarlyLook {
  bool is_too_much = false;  // it can't have a total below the limit
  Bytes least_total;         // at most its total; 0: not known
};

/// What a search asks first: whether a job needs less than some limit, which is found out faster still.
struct Attempt {
  bool is_modelled = true;
  bool fits = false;          // its verdict is `fits`
  bool requests_fit = false;  // it doesn't fit, and with another allocator it might
  /// The first rank, without breakdown and phases; none if its total isn't below the limit.
  std::optional<RankEstimate> rank;
};

/// What the bounds of a job are made of; jobs that differ in simple rows alone share it.
struct BoundParts {
  const Graph* graph = nullptr;
  LeastMemory::Parts memory;
  LeastSeconds::Parts seconds;
  bool is_modelled = true;
};

/// Bounds, times, trials and estimates of jobs of one model on one cluster; each job is tried and estimated once. Not
/// for several threads at once.
class Evaluator {
 public:
  explicit Evaluator(const PlanRequest& request)
      : Evaluator(request, std::make_shared<ModelStages>(request.spec, request.cluster.card.device)) {}
  /// With the stages of another search for the same model, adapters and kind of GPU.
  Evaluator(const PlanRequest& request, std::shared_ptr<ModelStages> model)
      : request_(request),
        efficiency_(request.efficiency ? *request.efficiency : efficiency_of(request.cluster)),
        model_(std::move(model)),
        least_(request.cluster, model_->stages()),
        least_seconds_(request.cluster, efficiency_, model_->stages(), request.clip),
        least_walked_(request.spec, request.cluster, efficiency_, {.clip = request.clip}) {}

  BoundParts parts_of(const Job& job, OpenChoices open = {});
  /// At most the total of the estimate of each job that differs in what is open; 0 for one that isn't modelled, which
  /// is left to its estimate.
  Bytes least_total(const BoundParts& parts, const Job& job, OpenChoices open);
  Bytes least_total(const Job& job) { return least_total(parts_of(job), job, {}); }
  /// Whether a job that needs `least` or more can't have the verdict `fits`.
  bool is_ruled_out(const BoundParts& parts, const Job& job, OpenChoices open, Bytes least) const;
  /// At least the tokens_per_second of the timed() of each job that differs in what is open; infinite without a bound.
  double most_tokens_per_second(const BoundParts& parts, const Job& job, OpenChoices open) const;
  /// Likewise of one job, whatever its runtime.
  double most_tokens_per_second(const Job& job);
  /// Whether the lower bound alone excludes the verdict `fits`.
  bool is_ruled_out(const Job& job);

  /// Of a runtime that isn't bounded: at most what the job's program takes; 0 for others, and where nothing is known.
  /// Without seconds.
  LeastOfWalk least_memory(const Job& job);
  /// Likewise of each job that differs in micro-batch and accumulation alone; found out once for them all.
  LeastOfWalk least_memory_at_any_batch(const Job& job);
  /// Likewise of those with at least twice as many rows in a micro-batch as `rows`.
  LeastOfWalk least_memory_at_twice_the_rows(const Job& job, std::int64_t rows);
  /// Likewise from a whole walk of one row, which isn't worth it unless the others say nearly as much. Of ZeRO-3 alone,
  /// whose peaks few blocks tell less exactly. `reserved` is the sum of what its streams need at once: what an
  /// allocator reserves for one row may be more than for two.
  LeastOfWalk least_memory_of_one_row(const Job& job);
  /// Likewise without any walk (LeastWalked::without_walk).
  Bytes least_without_walk(const Job& job) { return LeastWalked::without_walk(graph_of(job), job); }
  /// Of a runtime that isn't bounded: whether its walk shows that the job's total isn't below a limit, where it is then
  /// given up. False for others.
  bool walks_beyond(const Job& job, Bytes below);
  /// Likewise, that it can't have the verdict `fits`.
  bool walks_too_far(const Job& job) { return walks_beyond(job, least_misfit(job)); }
  /// Whether one micro-batch of as many rows can't have that verdict, and so neither can the job. That is walked
  /// through only where a bound of the job is dearer. False under DeepSpeed, where one may take more than several.
  bool walks_too_far_alone(const Job& job);
  /// Of a runtime that isn't bounded: whether it certainly keeps more in host memory than a node has.
  bool lacks_host_memory(const Job& job);
  /// Whether a job of which the allocator reserves so much can't have the verdict `fits`.
  bool is_too_much(const Job& job, Bytes reserved);
  /// Of a job under any runtime, what is outside the allocator.
  Bytes outside(const Job& job) { return outside_allocator(graph_of(job), job, request_.cluster); }
  Bytes capacity() const { return request_.cluster.card.memory; }
  const std::shared_ptr<ModelStages>& model() const { return model_; }

  /// The job with its time and the most that its program requests at once; one that isn't modelled has no time, which
  /// puts it behind all others.
  Option timed(const Job& job);
  /// Likewise, without its time if it needs more than `most` or can't have the verdict `fits`: then it is nobody's
  /// plan. `parts`: the job's. Of the engine's jobs alone; others are walked through once for all they need.
  Option timed_if_wanted(const Job& job, const BoundParts& parts, Bytes least, Bytes most);
  /// Counted and replayed as for the estimate, but not at the card's capacity: how far retries help is for the reader
  /// of an estimate.
  const Trial& trial_of(const Job& job);
  /// The job with the most that its program requests at once; under a runtime that is walked through, also its time.
  Option requested(const Job& job);
  /// Whether load and the first step, or their beginning, show that the job can't have the verdict `fits`, before
  /// anything else of it is known. Nothing is looked at where few jobs before it failed so, and where that isn't known
  /// of its runtime or allocator.
  EarlyLook look_early(const Job& job) { return expects_misfits() ? look_early(job, least_misfit(job)) : EarlyLook{}; }
  /// Likewise whether they show that the job's total isn't below a limit.
  EarlyLook look_early(const Job& job, Bytes below);
  /// Whether the job's total is below a limit; not kept.
  Attempt attempt(const Option& option, Bytes below);
  /// Likewise for one who asks whether it fits and nothing else: given up at the first total that can't have that
  /// verdict.
  Attempt attempt_to_fit(const Option& option) { return attempt(option, least_misfit(option.job)); }
  /// Likewise for one who would look for the smallest need if nothing fitted. For jobs that are bounded that is a
  /// search of its own; of others, totals up to the card's memory are told.
  Attempt attempt_to_be_fastest(const Option& option) {
    return option.job.runtime == Runtime::vramfit ? attempt_to_fit(option) : attempt(option, capacity() + Bytes{1});
  }
  const Estimate& estimate_of(const Job& job);
  Candidate candidate(const Option& option);
  /// Likewise, with what its attempt found in place of an estimate.
  Candidate candidate(const Option& option, const RankEstimate& rank) const;
  /// Where in a step it requests the most: "backward of layers.31".
  std::string peak_place_of(const Option& option);

  /// Jobs whose times were asked for.
  std::int64_t timings() const { return timings_; }
  /// Attempts, trials and estimates that were made.
  std::int64_t estimates() const { return estimates_made_; }

 private:
  using SharedProgram = std::shared_ptr<const program::Program>;
  struct KeptProgram {
    Job job;
    std::string key;  // once it was asked for
    SharedProgram program;
  };

  Trial try_out(const Job& job);
  /// Equal for jobs whose programs are the same: what an allocator does is no part of one, the order of requests is.
  static std::string without_allocator(Job job);
  /// What is found out by walking through a step of a runtime that isn't bounded.
  struct Walked {
    StepTime time;
    Bytes requested, reserved;
    std::weak_ptr<const program::Program> program;  // while it is kept
  };

  const Walked& walked(const Job& job);
  /// Null where the program reserves `below` or more, which ends the walk.
  const Walked* walked_below(const Job& job, Bytes below);
  bool is_given_up(const std::string& key, Bytes below) const;
  /// A total from which on the job can't have the verdict `fits`.
  Bytes least_misfit(const Job& job);
  /// Whether many jobs failed in their first step.
  bool expects_misfits() const { return misfits_to_wait_ == 0 || last_failed_; }
  /// Whether the allocator certainly reserves `below` or more in load and the first step. Of the engine's jobs alone.
  bool reserves_in_first_step(const program::Program& program, const Job& job, Bytes below);
  /// Likewise in what of them comes first, if this is a job whose beginning is looked at.
  bool reserves_in_beginning(const Graph& graph, const Job& job, Bytes below);
  /// Whether first steps of the job can be replayed, and that many bytes be reserved in one.
  bool has_first_step(const Job& job, Bytes below);
  /// Whether it reserves `below` or more, however its blocks are placed.
  bool reserves_too_much(const Option& option, Bytes below);
  /// What its program requests, which is kept.
  void add_requests(Option& option, const Graph& graph);
  void add_time(Option& option, const Graph& graph);
  program::LowerInputs inputs_of(const Graph& graph, const Job& job);
  SharedProgram program_of(const Graph& graph, const Option& option);
  SharedProgram lowered(const Graph& graph, const Job& job, std::optional<Bytes> reserves_below = {});
  /// What the engine's job asks for: its program without calls, kept until the next one.
  SharedProgram requests_for(const Graph& graph, const Job& job);
  /// Likewise, or the option's whole program if it is still kept.
  SharedProgram requests_for(const Graph& graph, const Option& option);
  Bytes least_total_of(const program::Program& program, const Graph& graph, const Job& job) const;
  /// Of a job that differs in its allocator at most, if it is still kept.
  SharedProgram kept_program_of(const Job& job);
  const Graph& graph_of(const Job& job) { return model_->graph_of(job); }

  const PlanRequest& request_;
  const Efficiency& efficiency_;
  std::shared_ptr<ModelStages> model_;
  LeastMemory least_;
  LeastSeconds least_seconds_;
  LeastWalked least_walked_;
  FirstSteps first_steps_;
  /// How many first steps have to fail until a job's beginning is looked at again, and how many the next time that one
  /// has shown nothing.
  int misfits_to_wait_ = 1, next_wait_ = 1;
  bool last_failed_ = false;             // the last first step that was looked at
  std::optional<KeptProgram> requests_;  // of requests_for()
  std::deque<KeptProgram> programs_;     // those that were lowered last
  std::int64_t timings_ = 0, estimates_made_ = 0;
  std::map<std::string, Walked> walked_;   // by the job's flags without its allocator, which is no part of a program
  std::map<std::string, Bytes> given_up_;  // likewise: what programs reserve at least whose walk was given up
  std::map<std::string, Trial> trials_;    // by the job's flags
  std::map<std::string, Estimate> estimates_;
};

/// Whether the job is one that the request rules out by name.
bool is_rejected(const PlanRequest& request, const Job& job);

/// Total bytes of the worst rank; estimates without ranks have none.
Bytes worst_total(const Estimate& estimate);

}  // namespace vramfit
