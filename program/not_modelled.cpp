#include "program/not_modelled.h"

#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "job/allocator_settings.h"
#include "job/job_fields.h"
#include "program/ops/fp8.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

namespace {

/// "--runtime pytorch-fsdp2", as the user would type it.
[[noreturn]] void refuse(const Job& job, std::string_view field) {
  const JobField& row = job_field_named(field);
  throw NotModelled(fmt::format("{} {}", flag_of(row), row.get(job)));
}

/// The optimizers take one dtype for parameter, gradient and states, as LibTorch's fused kernels do. The gradient shard
/// has the parameters' dtype (Unit::gradient), whatever dtype ranks reduce in.
void require_optimizer(const Job& job) {
  if (!has_optimizer(job)) refuse(job, "optimizer");
  const Precision& p = job.precision;
  if (p.storage == p.state) return;
  throw NotModelled(
      fmt::format("--storage-dtype {} with --state-dtype {} (the engine's optimizers want one dtype for parameters and "
                  "states)",
                  dtype_name(p.storage), dtype_name(p.state)));
}

/// The loss reads logits of the compute dtype as fp32, block by block: what FSDP2's output_dtype=float32 computes,
/// without its copy. Anything else would round them once more.
void require_output(const Precision& p) {
  if (p.output == p.compute || p.output == Dtype::f32) return;
  throw NotModelled(fmt::format("--output-dtype {} with --compute-dtype {} (use --output-dtype {} or fp32)",
                                dtype_name(p.output), dtype_name(p.compute), dtype_name(p.compute)));
}

void require_precision(const Job& job) {
  const Precision& p = job.precision;
  if (wants_fp8(p) && p.compute != Dtype::bf16) {
    throw NotModelled(fmt::format("--precision fp8 with --compute-dtype {} (use bf16)", dtype_name(p.compute)));
  }
  if (p.storage == Dtype::f16) {
    throw NotModelled(
        "--storage-dtype fp16 (updates and squares of gradients below 6e-8 would vanish; use --precision fp16-mixed)");
  }
  require_output(p);
}

void require_own_runtime(const Job& job, const Cluster& cluster) {
  if (job.modeling != Modeling::vramfit) refuse(job, "modeling");
  require_precision(job);
  require_optimizer(job);
  if (job.checkpointing == Checkpointing::selective) refuse(job, "checkpointing");
  const bool any_device = job.attention == Attention::automatic || job.attention == Attention::math;
  if (cluster.is_cpu() && !any_device) refuse(job, "attention");
}

/// PyTorch 2.11 prefers cuDNN's attention on compute capability 9.0, and up to a head_dim of 128 on 10; what its
/// kernels allocate is not counted.
void require_flash(const Job& job, const Cluster& cluster) {
  if (job.attention == Attention::flash) return;
  if (job.attention != Attention::automatic) refuse(job, "attention");
  const int capability = cluster.card.device.compute_capability;
  if (capability >= 90 && capability < 120) {
    throw NotModelled("--attention cudnn, which PyTorch picks on this card (--attention flash is)");
  }
}

void require_fsdp2(const Job& job, const Cluster& cluster) {
  if (job.modeling != Modeling::torchtitan) {
    throw NotModelled(fmt::format("--runtime pytorch-fsdp2 with --modeling {}", job_field_named("modeling").get(job)));
  }
  if (cluster.is_cpu() || cluster.card.device.compute_capability < 80) {
    throw NotModelled("--runtime pytorch-fsdp2 without flash attention: CPU ranks, cards below compute capability 8.0");
  }
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "pytorch-fsdp2");
  job_field_named("precision").set(modelled, "bf16-mixed");
  job_field_named("loss").set(modelled, "full");
  for (const JobField& field : job_fields()) {
    const bool is_honoured = field.honoured_by == HonouredBy::every_runtime;
    if (!is_honoured && field.get(job) != field.get(modelled)) refuse(job, field.name);
  }
  if (!has_optimizer(job)) refuse(job, "optimizer");
  if (job.accumulation > 1) refuse(job, "grad_accum");
  if (job.mesh.shard < 2) throw NotModelled("runtime pytorch-fsdp2 on one shard");
  if (job.reshard == Reshard::groups) refuse(job, "reshard");
  require_flash(job, cluster);
}

}  // namespace

void require_rules(const Job& job, const Cluster& cluster) {
  if (job.method != Method::full) refuse(job, "method");
  if (!job.offload.empty()) refuse(job, "offload");
  if (allocator_settings(job.allocator).malloc_async) refuse(job, "allocator");
  switch (job.runtime) {
    case Runtime::vramfit:
      return require_own_runtime(job, cluster);
    case Runtime::pytorch_fsdp2:
      return require_fsdp2(job, cluster);
  }
}

}  // namespace vramfit
