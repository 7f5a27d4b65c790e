// A training step as a list of instructions over segments and units. `program/schedules/` makes it
// from the job; the estimator reads it for bytes and the executor for work.
#pragma once

#include <string_view>
#include <vector>

#include "program/ledger/ledger.h"
#include "program/stages/units_layout.h"

namespace vramfit {

enum class Do {
  begin,         // micro-batch: its ids and labels exist from here
  issue,         // start gathering `unit`
  wait,          // `unit`, issued before, is gathered
  forward,       // `segment`; keeps what backward reads unless `checkpointed`
  release,       // drop the gathered storage of `unit`
  reshard,       // the same, except for the slice that the next issue gathers from the group of --reshard N
  recompute,     // `segment`, from its kept input
  backward,      // `segment`
  accumulate,    // keep the gradients of `unit` from the segment just run, whole, for a later micro-batch's reduce
  reduce,        // hand the gradients of `unit` from the segment just run to the reduction
  finish,        // wait for it and add it to the gradient shard
  sum_replicas,  // start summing the gradient shards of `bucket` over replicas; waited for before the next clip or step
  end,           // micro-batch: ids and labels are dropped
  mask,          // --gradient-mask over all gradient shards
  clip,          // global norm over all gradient shards
  step           // optimizer: of `unit`, or (-1) of all units that have gradients left, which are dropped
};

struct Instruction {
  Do what = Do::begin;
  int segment = -1, unit = -1;
  int micro_batch = 0;
  bool checkpointed = false;     // Do::forward
  bool last = false;             // last micro-batch of the step
  bool in_group = false;         // Do::issue: from the slices that Do::reshard left
  std::vector<int> bucket = {};  // Do::sum_replicas: units whose gradient shards go together
};

/// "forward", "issue": the enumerator's name.
std::string_view instruction_name(Do what);

/// What a schedule is made from.
struct ScheduleInputs {
  const Job& job;
  const Graph& graph;
  const UnitLayout& layout;
  std::vector<bool> segment_has_backward;  // false below the lowest trainable op
  bool clip = true;
};

/// Whether the backward pass of a segment needs its parameters gathered.
bool reads_weights_in_backward(const Segment& segment);

/// The last block among the segments; -1: there is none.
int last_block(const Graph& graph);

/// Whether --reshard keeps a unit gathered from forward to backward; `last_block` as above.
bool is_kept_for_backward(const Job& job, const UnitLayout& layout, int last_block, int unit);

/// The schedule of one training step for `job.runtime`; throws NotModelled for choices without rules.
std::vector<Instruction> make_schedule(const ScheduleInputs& inputs);

/// The schedule of runtime vramfit (program/schedules/vramfit.cpp).
std::vector<Instruction> make_vramfit_schedule(const ScheduleInputs& inputs);

/// Adds the sums over replicas (program/schedules/replica_sums.cpp): each unit once per step, after its last finish,
/// together with units that became ready just before it, until job.bucket_bytes are collected. The first bucket holds
/// only 1 MiB, so that the links have work early. The sizes are those of PyTorch's DDP (its kDefaultFirstBucketBytes
/// and bucket_cap_mb). Without replicas, nothing is added.
std::vector<Instruction> with_replica_sums(std::vector<Instruction> schedule, const ScheduleInputs& inputs);

/// With --optimizer-in-backward adds a step of each unit where nothing of this step changes its gradients or reads its
/// parameters any more: after its last finish and its last release; with replicas after the sum of the bucket that
/// follows its own has started, so that backward hides its own. Reductions that come next are started first, as they
/// run beside it. The last bucket is left to the step at the end. Throws NotModelled for jobs that need all gradients
/// at once (program/schedules/optimizer_in_backward.cpp).
std::vector<Instruction> with_updates_in_backward(std::vector<Instruction> schedule, const ScheduleInputs& inputs);

/// Whether the job recomputes a segment in backward instead of keeping what its forward pass made.
bool is_checkpointed(const Job& job, const Graph& graph, const std::vector<bool>& segment_has_backward, int segment);

/// By segment: whether what it keeps for its backward pass leaves the card meanwhile. What the last block keeps is
/// needed at once, so it stays.
std::vector<bool> segments_that_leave(const Job& job, const Graph& graph, const std::vector<bool>& has_backward);

/// The phase in which an instruction's events fall. `computes_loss`: its segment does; `current`: that of the
/// instruction before it.
Phase phase_of(const Instruction& instruction, bool computes_loss, Phase current);

/// Whether a segment computes the loss (alone, or with the head when chunked).
bool is_loss_segment(const Segment& segment);

/// Most gathered units that live at once, read off the schedule.
int peak_live_units(const std::vector<Instruction>& schedule);

/// What peak_live_units may be: the units of a pass, those of the passes that the prefetch reaches from it, and those
/// that the job keeps at that time. With one unit per segment: prefetch depth + 1 + kept ones. make_schedule checks
/// every schedule and throws std::logic_error if one exceeds this.
int most_live_units(const ScheduleInputs& inputs);

/// Ranks of the groups of --reshard N, if the schedule gathers anything from slices; else 0, and no such group is made:
/// where units stay gathered until backward (--wrap none), or backward reads none, nothing is left in slices.
std::int64_t slice_group_ranks(const Graph& graph, const Job& job);

/// Most gathers that are issued and not yet waited for at once, read off the schedule; at most --prefetch limit=N.
int peak_gathers_in_flight(const std::vector<Instruction>& schedule);

}  // namespace vramfit
