// With n blocks, what is live at any moment of a step is affine in n and in how many of them have run: each block
// brings the same parameters, states, gradients and activations. The peak is the most over all moments, so the first or
// the last block decides where that is, and a maximum of affine functions of n is convex: it grows from block to block
// by no less than it did before. So two walks with few blocks bound one with many, if they are deep enough for each
// kind of moment: two units gathered ahead, one being reduced, and a first and a last block beside them. The same is
// true of what is live on one stream, and of the sum of all streams' peaks.
//
// Each block brings the same kernels, too, so the time in which the compute stream runs kernels is affine in n, and a
// step takes no less. Of a model whose kinds of blocks alternate, whole rounds of them are left out. Where every Nth
// block is checkpointed, those run the kernels that they run where all are.
//
// A larger micro-batch makes the same tensors, none of them smaller, and more micro-batches repeat them, with gradients
// that stay. So one micro-batch of one row requests no more than any other choice, and one of N rows no more than any
// choice with 2 N rows or more. Between N and 2 N, the backward pass of memory-efficient attention may need less: it
// splits keys into at most 200 parts over all heads, of which 100 heads make two each, and 101 one each. GRPO's options
// decide by what is accumulated whether rows are scored again before they are trained on, so its batch stays as it is.
#include "planner/search/least_walked.h"

#include <algorithm>
#include <numeric>
#include <variant>
#include <vector>

#include "base/error.h"
#include "estimator/least/least_while_updating.h"
#include "estimator/time/activation_seconds.h"
#include "estimator/time/seconds.h"
#include "job/fields/job_fields.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/ops/attention.h"
#include "program/readers/least_reserved.h"
#include "program/readers/peak_activations.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"
#include "program/stages/offload.h"

namespace vramfit {
namespace {

constexpr std::size_t kFewest = 4;
/// Two walks that take more than one part in so many of the whole one aren't worth it.
constexpr std::size_t kWorthwhile = 2;

bool is_alike(const Op& a, const Graph& of_a, const Op& b, const Graph& of_b) {
  const auto is_same_use = [&](const ParameterUse& x, const ParameterUse& y) {
    const bool has_none = x.parameter < 0 || y.parameter < 0;
    if (has_none) return x.parameter == y.parameter;
    return x.first == y.first && x.count == y.count &&
           of_a.parameters[static_cast<std::size_t>(x.parameter)].shape ==
               of_b.parameters[static_cast<std::size_t>(y.parameter)].shape;
  };
  return a.kind == b.kind && a.name == b.name && a.inputs == b.inputs && a.outputs == b.outputs &&
         a.attributes == b.attributes && std::ranges::equal(a.parameters, b.parameters, is_same_use);
}

bool is_alike(const Segment& a, const Graph& of_a, const Segment& b, const Graph& of_b) {
  return a.role == b.role && a.values == b.values && a.input == b.input && a.output == b.output &&
         std::ranges::equal(a.ops, b.ops, [&](const Op& x, const Op& y) { return is_alike(x, of_a, y, of_b); });
}

std::size_t blocks_of(const Graph& graph) {
  return static_cast<std::size_t>(std::ranges::count(graph.segments, SegmentRole::block, &Segment::role));
}

std::size_t first_block(const Graph& graph) {
  const auto first = std::ranges::find(graph.segments, SegmentRole::block, &Segment::role);
  return static_cast<std::size_t>(first - graph.segments.begin());
}

/// After how many blocks a model's are like those before: 2 where every second one has a window. As many as there are
/// where they aren't.
std::size_t alternation_of(const Graph& graph) {
  const std::size_t begin = first_block(graph), blocks = blocks_of(graph);
  const auto is_alternation = [&](std::size_t period) {
    for (std::size_t b = begin + period; b < begin + blocks; ++b) {
      if (!is_alike(graph.segments[b], graph, graph.segments[b - period], graph)) return false;
    }
    return true;
  };
  std::size_t period = 1;
  while (period < blocks && !is_alternation(period)) ++period;
  return period;
}

/// Whether `less` is `graph` but for blocks, of which it has `blocks`, and those of both alternate alike.
bool is_shortened(const Graph& less, const Graph& graph, std::size_t blocks, std::size_t alternation) {
  if (blocks_of(less) != blocks || blocks < alternation) return false;
  const std::size_t removed = blocks_of(graph) - blocks;
  if (less.segments.size() + removed != graph.segments.size() || removed % alternation != 0) return false;
  const std::size_t begin = first_block(graph), end = begin + blocks_of(graph);
  for (std::size_t s = 0; s < less.segments.size(); ++s) {
    const bool is_behind = s >= begin + blocks;  // its other segments
    const std::size_t other = is_behind ? s + end - begin - blocks : s;
    if (!is_alike(graph.segments[other], graph, less.segments[s], less)) return false;
  }
  return true;
}

/// After how many blocks a job treats them as before; 0: not known.
std::size_t period_of(const Job& job) {
  if (job.runtime == Runtime::vramfit || !job.freeze.empty()) return 0;
  if (const auto* every = std::get_if<EveryNth>(&job.checkpointing)) return static_cast<std::size_t>(every->n);
  if (const auto* selective = std::get_if<SelectiveCheckpointing>(&job.checkpointing)) return selective->kept.empty();
  const bool is_by_block = std::holds_alternative<NoCheckpointing>(job.checkpointing) ||
                           std::holds_alternative<FullCheckpointing>(job.checkpointing);
  return is_by_block ? 1 : 0;
}

LeastOfWalk least_of(const program::Program& program, const Cluster& cluster, const Efficiency& efficiency) {
  return {.requested = folded_peaks(program, Bytes{1}).requested,
          .reserved = least_reserved(program),
          .compute_seconds = seconds_of(program, cluster, efficiency).compute_seconds};
}

/// Of DeepSpeed the activations alone, and the time that work on them takes. Its buckets and what ZeRO-3 keeps whole
/// grow with the blocks up to a limit, so that few blocks would say too much of many.
LeastOfWalk least_of_activations(const program::Program& program, const Cluster& cluster,
                                 const Efficiency& efficiency) {
  const Bytes activations = peak_activations(program);
  return {.requested = activations,
          .reserved = activations,
          .compute_seconds = activation_seconds(program, cluster, efficiency)};
}

/// Those between a step's second and last micro-batch are as the second, so that more of them take no less memory, and
/// each as long as another one. What GRPO's accumulate decides what is scored.
Job with_few_micro_batches(const Job& job) {
  constexpr std::int64_t kFew = 4;
  Job few = job;
  if (job.accumulation <= kFew || job.modeling == Modeling::trl_grpo) return few;
  few.accumulation = kFew;
  few.global_batch = job.global_batch / job.accumulation * kFew;
  return few;
}

/// Whether the memory of few micro-batches bounds that of all of its own. Under ZeRO-3, parameters that stay whole from
/// step to step may take more with fewer of them.
bool has_more_micro_batches(const Job& job) {
  return job.runtime != Runtime::deepspeed && with_few_micro_batches(job).accumulation < job.accumulation;
}

bool is_middle(const program::Section& section) { return section.kind == program::Section::Kind::middle; }

/// One micro-batch more in each step. Where each of them is walked through, a step has several such sections in a row.
void add_micro_batch(std::vector<program::Section>& sections) {
  for (std::size_t s = 0; s < sections.size(); ++s) {
    const bool is_last = s + 1 == sections.size() || !is_middle(sections[s + 1]);
    if (is_middle(sections[s]) && is_last) ++sections[s].times;
  }
}

}  // namespace

const std::optional<Graph>& LeastWalked::short_graph(const Graph& graph, const Job& job, std::size_t blocks) {
  const std::tuple key{loss_options(job), has_adapters(job), blocks};
  if (const auto found = graphs_.find(key); found != graphs_.end()) return found->second;
  std::optional<Graph> made;
  try {
    ModelSpec spec = spec_;
    spec.num_hidden_layers = static_cast<std::int64_t>(blocks);
    made = training_graph(spec, job);
    if (!is_shortened(*made, graph, blocks, alternation(graph, job))) made.reset();
  } catch (const Error&) {
    made.reset();
  }
  return graphs_.emplace(key, std::move(made)).first->second;
}

std::size_t LeastWalked::alternation(const Graph& graph, const Job& job) {
  const auto [known, is_new] = alternations_.try_emplace({loss_options(job), has_adapters(job)}, 1);
  if (is_new) known->second = alternation_of(graph);
  return known->second;
}

std::optional<LeastOfWalk> LeastWalked::walked(const Graph& graph, const Job& job, std::size_t blocks) {
  const Job few = with_few_micro_batches(job);
  const std::pair key{job_as_flags(few, unresolved_job()), blocks};
  auto found = walked_.find(key);
  if (found == walked_.end()) {
    const std::optional<Graph>& less = short_graph(graph, job, blocks);
    if (!less) return std::nullopt;
    program::Program program = program::make_program(
        {.graph = *less, .job = few, .device = cluster_.card.device, .coords = {}, .run = run_, .labels = false});
    const auto least = job.runtime == Runtime::deepspeed ? least_of_activations : least_of;
    Walk walk{.least = least(program, cluster_, efficiency_)};
    if (std::ranges::any_of(program.sections, is_middle)) {
      add_micro_batch(program.sections);
      walk.seconds_of_another = least(program, cluster_, efficiency_).compute_seconds - walk.least.compute_seconds;
    }
    found = walked_.emplace(key, walk).first;
  }
  LeastOfWalk walk = found->second.least;
  walk.compute_seconds += static_cast<double>(job.accumulation - few.accumulation) * found->second.seconds_of_another;
  return walk;
}

std::optional<LeastOfWalk> LeastWalked::extended(const Graph& graph, const Job& job, std::size_t period,
                                                 std::size_t blocks) {
  std::size_t fewer = kFewest + (blocks + period * kFewest - kFewest) % period;
  if (fewer < period) fewer += period;  // so that each kind of block is among them
  const std::size_t more = fewer + period;
  if (blocks < more || kWorthwhile * (fewer + more) > blocks_of(graph)) return std::nullopt;
  const std::optional<LeastOfWalk> low = walked(graph, job, fewer), high = walked(graph, job, more);
  if (!low || !high) return std::nullopt;
  const auto periods = static_cast<std::int64_t>((blocks - more) / period);
  const Bytes kept = job.runtime == Runtime::deepspeed ? kept_by_zero(graph, job) : Bytes{};
  return LeastOfWalk{.requested = kept + high->requested + periods * (high->requested - low->requested),
                     .reserved = kept + high->reserved + periods * (high->reserved - low->reserved),
                     .compute_seconds = high->compute_seconds +
                                        static_cast<double>(periods) * (high->compute_seconds - low->compute_seconds)};
}

std::optional<LeastOfWalk> LeastWalked::without_checkpointed(const Graph& graph, const Job& job) {
  // Whatever else is live at a moment of the others still is, and they run. The last block of each period is
  // checkpointed (program/pytorch/loops/loop.cpp).
  const std::size_t period = period_of(job), blocks = blocks_of(graph);
  Job others = job;
  others.checkpointing = NoCheckpointing{};
  return extended(graph, others, 1, blocks - blocks / period);
}

double LeastWalked::seconds_of_checkpointed(const Graph& graph, const Job& job) {
  const std::size_t period = period_of(job), blocks = blocks_of(graph);
  Job all = job;
  all.checkpointing = FullCheckpointing{};
  const std::optional<LeastOfWalk> low = walked(graph, all, kFewest), high = walked(graph, all, kFewest + 1);
  if (!low || !high) return 0;
  return static_cast<double>(blocks / period) * (high->compute_seconds - low->compute_seconds);
}

Bytes LeastWalked::without_walk(const Graph& graph, const Job& job) {
  const Bytes loaded = loaded_whole(graph, job);
  return std::max(loaded,
                  job.runtime == Runtime::deepspeed ? kept_by_zero(graph, job) : least_while_updating(graph, job));
}

Bytes LeastWalked::in_host_memory(const Graph& graph, const Job& job) {
  const bool is_of_zero = job.runtime == Runtime::deepspeed && offload_of(job).states;
  const bool is_of_fsdp2 = job.runtime == Runtime::pytorch_fsdp2 && offload_of(job).parameters;
  const bool has_all = job.optimizer == "adamw" && job.freeze.empty() && !has_adapters(job);
  if (!has_all || (!is_of_zero && !is_of_fsdp2)) return {};
  constexpr std::int64_t kOfEach = 3;  // a weight or its master, and two states
  const Bytes each = dtype_bytes(is_of_zero ? Dtype::f32 : job.precision.storage);
  Bytes all;
  for (const Parameter& parameter : graph.parameters) {
    all = all + kOfEach * (element_count(parameter) / (is_of_zero ? data_ranks(job) : job.mesh.shard) * each);
  }
  return all;
}

bool LeastWalked::walks_all_blocks(const Graph& graph, const Job& job) {
  return has_more_micro_batches(job) && !of_few_blocks(graph, job);
}

std::optional<LeastOfWalk> LeastWalked::of_all_blocks(const Graph& graph, const Job& job) {
  if (!has_more_micro_batches(job)) return std::nullopt;
  try {
    return walked(graph, job, blocks_of(graph));
  } catch (const NotModelled&) {
    return std::nullopt;  // the whole walk says so
  }
}

std::optional<LeastOfWalk> LeastWalked::of(const Graph& graph, const Job& job) {
  const std::optional<LeastOfWalk> bound = of_few_blocks(graph, job);
  return bound ? bound : of_all_blocks(graph, job);
}

std::optional<LeastOfWalk> LeastWalked::of_few_blocks(const Graph& graph, const Job& job) {
  const std::size_t period = period_of(job);
  if (period == 0) return std::nullopt;
  const std::size_t alternation = this->alternation(graph, job);
  try {
    std::optional<LeastOfWalk> bound = extended(graph, job, std::lcm(period, alternation), blocks_of(graph));
    if (bound || period == 1 || alternation > 1) return bound;
    bound = without_checkpointed(graph, job);
    if (bound) bound->compute_seconds += seconds_of_checkpointed(graph, job);
    return bound;
  } catch (const NotModelled&) {
    return std::nullopt;  // the whole walk says so
  }
}

std::optional<Job> LeastWalked::with_rows(const Job& job, std::int64_t rows) const {
  if (job.modeling == Modeling::trl_grpo) return std::nullopt;  // what is accumulated decides what is scored again
  // Attention whose blocks don't fill the card splits its keys, and adds up the parts in memory that more rows don't
  // need.
  const std::int64_t heads = checked_mul(rows, spec_.num_attention_heads);
  if (flash_splits(heads, job.sequence, spec_.head_dim, cluster_.card.device) > 1) return std::nullopt;
  Job least = job;
  least.micro_batch = rows;
  least.accumulation = 1;
  least.global_batch = checked_mul(rows, data_ranks(job));
  return least;
}

Job LeastWalked::with_one_row(const Job& job) const { return with_rows(job, 1).value_or(job); }

std::optional<LeastOfWalk> LeastWalked::memory_of(const Graph& graph, const Job& job) {
  const std::size_t period = period_of(job);
  if (period == 0) return std::nullopt;
  const std::size_t alternation = this->alternation(graph, job);
  try {
    std::optional<LeastOfWalk> bound = period == 1 || alternation > 1
                                           ? extended(graph, job, std::lcm(period, alternation), blocks_of(graph))
                                           : without_checkpointed(graph, job);
    if (bound) bound->compute_seconds = 0;
    return bound;
  } catch (const NotModelled&) {
    return std::nullopt;  // the whole walk says so
  }
}

std::optional<LeastOfWalk> LeastWalked::at_any_batch(const Graph& graph, const Job& job) {
  return memory_of(graph, with_one_row(job));
}

std::optional<LeastOfWalk> LeastWalked::at_twice_the_rows(const Graph& graph, const Job& job, std::int64_t rows) {
  const std::optional<Job> least = with_rows(job, rows);
  return least ? memory_of(graph, *least) : std::nullopt;
}

}  // namespace vramfit
