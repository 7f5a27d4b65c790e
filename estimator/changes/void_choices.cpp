#include "estimator/changes/void_choices.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "job/allocator/allocator_settings.h"
#include "job/fields/job_fields.h"
#include "job/fields/trained_dtype.h"
#include "job/resolve_job.h"
#include "job/sharding/sharding.h"
#include "job/stacks/stacks.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/program_text.h"
#include "program/stages/adapters.h"

namespace vramfit {

namespace {

/// A field whose effect is in the program.
struct Row {
  std::string_view field;
  std::string (*why)(const Job& job, const Cluster& cluster);  // "": nothing is known but that it is so
  /// Where the program has no part of it, the jobs in which it does nothing else either; null: the program has it.
  bool (*is_nothing_else)(const Job& job, const Cluster& cluster) = nullptr;
};

bool is_alone(const Job& job) { return data_ranks(job) == 1; }

std::string why_no_shards(const Job& job, const Cluster& cluster) {
  if (is_alone(job)) return fmt::format("on one {} nothing is sharded", cluster.is_cpu() ? "rank" : "GPU");
  return job.mesh.shard == 1 ? fmt::format("with --sharding {} nothing is gathered", job.sharding) : "";
}

std::string why_same_sharding(const Job& job, const Cluster& cluster) {
  if (is_alone(job)) return why_no_shards(job, cluster);
  const bool is_hybrid = sharding_named(job.sharding).hybrid;
  return is_hybrid && job.mesh.replicate == 1 ? "there are no replicas (--mesh replicate=2)" : "";
}

std::string why_same_reshard(const Job& job, const Cluster& cluster) {
  const auto* groups = std::get_if<ReshardGroups>(&job.reshard);
  return groups != nullptr && groups->ranks == job.mesh.shard ? "all ranks are one group" : why_no_shards(job, cluster);
}

std::string why_same_prefetch(const Job& job, const Cluster& cluster) {
  const bool recomputes = !std::holds_alternative<NoCheckpointing>(job.checkpointing);
  if (job.mesh.shard == 1 || recomputes || job.prefetch_limit > 0) return why_no_shards(job, cluster);
  if (std::holds_alternative<ReshardNever>(job.reshard)) return "with --reshard never nothing is gathered in backward";
  return "without --checkpointing no recomputation lies between before and after";
}

std::string why_no_reduction(const Job& job, const Cluster& cluster) {
  return is_alone(job) ? fmt::format("on one {} nothing is reduced", cluster.is_cpu() ? "rank" : "GPU") : "";
}

std::string why_same_finish(const Job& job, const Cluster& cluster) {
  if (job.mesh.shard == 1 || !std::holds_alternative<NoCheckpointing>(job.checkpointing)) {
    return why_no_reduction(job, cluster);
  }
  return "without --checkpointing there is no recomputation during which to finish it";
}

std::string why_same_accumulation(const Job& job, const Cluster& cluster) {
  return job.accumulation == 1 ? "without --grad-accum nothing is added up" : why_no_reduction(job, cluster);
}

std::string why_same_buckets(const Job& job, const Cluster& /*cluster*/) {
  return job.mesh.replicate == 1 ? "there are no replicas" : "";
}

std::string why_same_output(const Job& job, const Cluster& /*cluster*/) {
  return job.runtime == Runtime::vramfit ? "the loss reads logits as fp32 in any case, block by block" : "";
}

std::string why_same_kernels(const Job& /*job*/, const Cluster& /*cluster*/) {
  return "kernels for CPU ranks always are";
}

std::string why_no_allocator(const Job& job, const Cluster& /*cluster*/) {
  if (puts_gradients_first(job.allocator))
    return "no layer is recomputed whose backward pass writes its gradients where they stay";
  return "CPU ranks have no caching allocator";
}

std::string why_no_checkpoints(const Job& job, const Cluster& /*cluster*/) {
  return std::holds_alternative<NoCheckpointing>(job.checkpointing) ? "without --checkpointing there are none" : "";
}

std::string why_no_ddp(const Job& job, const Cluster& /*cluster*/) {
  return job.runtime == Runtime::pytorch && job.mesh.replicate > 1 ? "" : "only DDP reads it";
}

std::string why_same_gradients(const Job& job, const Cluster& /*cluster*/) {
  return fmt::format("parameters are stored in {} too, and gradients then have it anyway",
                     dtype_name(job.precision.storage));
}

std::string why_not_said(const Job& /*job*/, const Cluster& /*cluster*/) { return ""; }

bool is_on_cpu(const Job& /*job*/, const Cluster& cluster) { return cluster.is_cpu(); }
bool is_gradient_dtype_void(const Job& job, const Cluster& /*cluster*/) {
  return !keeps_fp8_gradients(job) && kept_gradient_dtype(job) == job.precision.storage;
}
bool is_allocator_void(const Job& job, const Cluster& cluster) {
  return puts_gradients_first(job.allocator) || (cluster.is_cpu() && !is_arena(job.allocator));
}

constexpr std::array kRows{Row{"reduce_dtype", why_no_reduction},
                           Row{"output_dtype", why_same_output},
                           Row{"gradient_dtype", why_same_gradients, is_gradient_dtype_void},
                           Row{"sharding", why_same_sharding},
                           Row{"reshard", why_same_reshard},
                           Row{"wrap", why_not_said},
                           Row{"wrap_embeddings", why_not_said},
                           Row{"prefetch", why_same_prefetch},
                           Row{"reduce_finish", why_same_finish},
                           Row{"accumulate", why_same_accumulation},
                           Row{"bucket_bytes", why_same_buckets},
                           Row{"find_unused_parameters", why_no_ddp},
                           Row{"reentrant_checkpoints", why_no_checkpoints},
                           Row{"reshard_head", why_no_shards},
                           Row{"deterministic", why_same_kernels, is_on_cpu},
                           Row{"load", why_no_shards},
                           Row{"allocator", why_no_allocator, is_allocator_void}};

/// The job as it would be if nobody had set the field; none if that can't be.
std::optional<Job> without(const JobField& field, const Job& job, const ModelSpec& spec, const Cluster& cluster) {
  try {
    Job usual = unresolved_job();
    for (const std::string_view name : {"runtime", "modeling"}) {
      job_field_named(name).set(usual, job_field_named(name).get(job));
    }
    usual.precision = precision_on(job, job.precision.name);
    Job other = job;
    if (field.name == "gradient_dtype") {
      other.gradient_dtype = usual.gradient_dtype;  // which no text sets
    } else {
      field.set(other, field.get(usual));
    }
    std::vector<std::string> notes;
    other = resolve_job(other, spec, cluster, notes);
    require_rules(other, cluster);
    return other;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string program_of(const Job& job, const ModelSpec& spec, const Cluster& cluster, const RunEffects& run) {
  const Graph graph = training_graph(spec, job);
  return program::program_text(
      program::make_program({.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .run = run}));
}

}  // namespace

std::vector<std::string> void_choices(const ModelSpec& spec, const Job& job, const std::vector<std::string>& set,
                                      const Cluster& cluster, const RunEffects& run) {
  std::vector<std::string> list;
  std::string own;
  for (const Row& row : kRows) {
    if (std::ranges::find(set, row.field) == set.end()) continue;
    if (row.is_nothing_else != nullptr && !row.is_nothing_else(job, cluster)) continue;
    const JobField& field = job_field_named(row.field);
    const std::optional<Job> other = without(field, job, spec, cluster);
    if (!other || field.get(*other) == field.get(job)) continue;
    if (own.empty()) own = program_of(job, spec, cluster, run);
    if (program_of(*other, spec, cluster, run) != own) continue;
    const std::string why = row.why(job, cluster);
    list.push_back(fmt::format("{} {} changes nothing: {}", flag_of(field), field.get(job),
                               why.empty() ? "the step is the same without it" : why));
  }
  return list;
}

}  // namespace vramfit
