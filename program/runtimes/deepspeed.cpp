// DeepSpeed's ZeRO-1 and ZeRO-2 as transformers' Trainer sets them up (`deepspeed=` of its arguments).
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/not_modelled.h"
#include "program/pytorch/modelings/segment_reader.h"
#include "program/pytorch/record.h"
#include "program/pytorch/rules.h"
#include "program/pytorch/zero.h"
#include "program/runtimes/runtimes.h"

namespace vramfit {

namespace {

using eager::Module;
using eager::Torch;

std::unique_ptr<eager::Wrapper> wrap(Torch& torch, const Graph& graph, const Job& job,
                                     const std::vector<Module>& modules) {
  return std::make_unique<eager::Zero>(torch, graph, job, modules);
}

constexpr std::array<std::string_view, 1> kHonoured{"bucket_bytes"};

/// What ZeRO's stage is called here.
void require_stage(const Job& job) {
  if (job.sharding == "shard-grad-op" || job.sharding == "shard-optimizer") return;
  throw NotModelled(
      fmt::format("--runtime deepspeed with --sharding {}{} (--sharding shard-grad-op is ZeRO-2, "
                  "shard-optimizer ZeRO-1)",
                  job.sharding, job.sharding == "full-shard" ? ", ZeRO-3" : ""));
}

void require(const Job& job, const Cluster& cluster) {
  if (job.modeling != Modeling::transformers) {
    throw NotModelled(fmt::format("--runtime deepspeed with --modeling {} (--modeling transformers is)",
                                  job_field_named("modeling").get(job)));
  }
  require_stage(job);
  if (job.optimizer != "adamw" || job.optimizer_implementation == OptimizerImplementation::paged) {
    refuse_field(job, "optimizer");
  }
  if (job.precision.name == "bf16-mixed" && job.precision.storage != Dtype::f32) {
    throw NotModelled(
        fmt::format("--storage-dtype {} (DeepSpeed's partitions are fp32, whatever the checkpoint has: --storage-dtype "
                    "fp32 --state-dtype fp32)",
                    job_field_named("storage_dtype").get(job)));
  }
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "deepspeed");
  job_field_named("precision").set(modelled, "bf16-mixed");
  job_field_named("loss").set(modelled, "full");
  eager::require_rules(job, modelled, cluster, kHonoured);
}

/// The model is converted to bf16, whatever it is stored in, and computes without autocast; partitions are fp32.
Job in_bf16(Job job) {
  job.precision = precision_named("bf16-pure");
  job.precision.state = Dtype::f32;
  return job;
}

program::Program make(const program::LowerInputs& inputs) {
  if (has_experts(inputs.graph)) eager::refuse_model(inputs.job, "experts with --runtime deepspeed");
  const Job job = in_bf16(inputs.job);
  return eager::record({.graph = inputs.graph,
                        .job = job,
                        .device = inputs.device,
                        .coords = inputs.coords,
                        .run = inputs.run,
                        .labels = inputs.labels},
                       wrap);
}

}  // namespace

RuntimeRow deepspeed_row() { return {.require_rules = require, .make_program = make}; }

}  // namespace vramfit
