#include "estimator/not_modelled.h"

#include <string>

#include <fmt/format.h>

#include "estimator/job_fields.h"
#include "model_specs/error.h"

namespace vramfit {

namespace {

/// "--runtime pytorch-fsdp2", as the person would type it.
[[noreturn]] void refuse(const Job& job, std::string_view field) {
  const JobField& row = job_field_named(field);
  throw NotModelled(fmt::format("{} {}", flag_of(row), row.get(job)));
}

/// at::_fused_adamw_ wants one dtype for parameter, gradient and states; the CPU optimizer keeps to the same.
void require_optimizer(const Job& job) {
  if (job.optimizer != "adamw" || job.optimizer_implementation != OptimizerImplementation::fused) {
    refuse(job, "optimizer");
  }
  const Precision& p = job.precision;
  if (p.storage == p.reduce && p.storage == p.state) return;
  throw NotModelled(fmt::format("fused adamw with {} parameters, {} gradients and {} states (it wants one dtype)",
                                dtype_name(p.storage), dtype_name(p.reduce), dtype_name(p.state)));
}

void require_precision(const Job& job) {
  const Precision& p = job.precision;
  if (p.name == "fp8" || p.name == "fp16-mixed") refuse(job, "precision");
  for (const Dtype dtype : {p.storage, p.compute, p.reduce, p.state}) {
    if (dtype != Dtype::f32 && dtype != Dtype::bf16) {
      throw NotModelled(fmt::format("training in {}", dtype_name(dtype)));
    }
  }
  if (p.buffer != Dtype::f32) refuse(job, "buffer_dtype");
}

}  // namespace

void require_rules(const Job& job, const Cluster& cluster) {
  if (job.runtime != Runtime::vramfit) refuse(job, "runtime");
  if (job.modeling != Modeling::vramfit) refuse(job, "modeling");
  if (job.method != Method::full) refuse(job, "method");
  require_precision(job);
  require_optimizer(job);
  if (job.reshard == Reshard::groups) refuse(job, "reshard");
  if (job.wrap != Wrap::layer) refuse(job, "wrap");
  if (job.prefetch_limit != 0) refuse(job, "prefetch");
  if (job.checkpointing == Checkpointing::selective) refuse(job, "checkpointing");
  if (!job.offload.empty()) refuse(job, "offload");
  if (!cluster.is_cpu() && job.allocator != "expandable") refuse(job, "allocator");
  const bool any_device = job.attention == Attention::automatic || job.attention == Attention::math;
  if (cluster.is_cpu() && !any_device) refuse(job, "attention");
}

}  // namespace vramfit
