#include "estimator/least/job_keys.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "job/fields/grpo_text.h"
#include "job/fields/job_field_text.h"
#include "job/fields/job_fields.h"
#include "job/fields/zero_text.h"
#include "job/loss/loss_options.h"
#include "job/sharding/sharding.h"
#include "program/optimizers/optimizers.h"
#include "program/stages/kept_values.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

template <typename Enum>
int number(Enum value) {
  return static_cast<int>(value);
}

/// Which parameters there are, and which are trained.
std::string parameters_key(const Job& job) {
  std::string key;
  for (const JobField& field : job_fields()) {
    if (field.decides == Decides::parameters) key += fmt::format(" {}", field.get(job));
  }
  return key;
}

std::string common_key(const Job& job) {
  const Precision& p = job.precision;
  return fmt::format("{} {} {} {} {} {} {}{}", p.name, number(p.storage), number(p.compute), number(p.reduce),
                     number(p.buffer), number(p.output), number(p.state), parameters_key(job));
}

/// What tapes keep in selective checkpointing, where it isn't one of the policies that all tapes have.
std::string own_policy(const Job& job) { return has_own_policy(job.checkpointing) ? get_checkpointing(job) : ""; }

/// Which parts of a unit are in host memory.
int units_on_host(const Job& job) {
  const Offload offload = offload_of(job);
  return (offload.states ? 1 : 0) + (offload.gradients ? 1 : 0) + (offload.parameters ? 1 : 0);
}

/// What copies of activations depend on besides the schedule; "" where there are none.
std::string activations_key(const Job& job) {
  const Offload offload = offload_of(job);
  return offload.activations ? fmt::format("; {} {} {}", job.micro_batch, job.sequence, offload.every) : "";
}

}  // namespace

std::string layout_key(const Graph& graph, const Job& job) {
  const Precision& p = job.precision;
  return fmt::format("{} {} {} {}{} {} {} {} {} {} {} {}", graph.segments.size(), number(p.storage), number(p.compute),
                     number(p.reduce), parameters_key(job), optimizer_named(job.optimizer).block,
                     sharding_named(job.sharding).parameters, job.mesh.shard, reshard_ranks(job), get_wrap(job),
                     job.wrap_embeddings, units_on_host(job));
}

std::string units_key(const Graph& graph, const Job& job) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {}", graph.segments.size(), common_key(job), job.optimizer,
                     number(job.optimizer_implementation), sharding_named(job.sharding).parameters, job.mesh.shard,
                     reshard_ranks(job), get_wrap(job), job.wrap_embeddings, units_on_host(job), number(job.kernels));
}

std::string blocks_key(const Job& job) {
  return fmt::format("{} {} {} {} {} {} {}", common_key(job), job.micro_batch, job.sequence, number(job.attention),
                     job.deterministic, own_policy(job), number(job.kernels));
}

std::string ops_key(const Graph& graph, const Job& job) {
  return fmt::format("{} {}", fmt::ptr(&graph), blocks_key(job));
}

std::string schedule_key(const Job& job) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", number(job.runtime), job.sharding,
                     job.mesh.replicate, job.reshard.index(), number(job.backward_prefetch), job.forward_prefetch,
                     job.prefetch_limit, number(job.reduce_finish), job.bucket_bytes, overlaps_reductions(job),
                     get_zero3_sizes(job), get_grpo(job), job.packs_documents, job.reshard_head, get_checkpointing(job),
                     number(job.accumulate), std::min<std::int64_t>(job.accumulation, 3), job.gradient_mask.index(),
                     job.optimizer_in_backward);
}

std::string program_key(const Graph& graph, const Job& job) {
  return fmt::format("{}; {}; {} {} {}{}", units_key(graph, job), schedule_key(job), number(job.attention),
                     job.deterministic, loss_options(job).gradients_in_forward, activations_key(job));
}

}  // namespace vramfit
