// PyTorch without sharding: the model on one GPU, its gradients and states beside it; on several GPUs, a copy on each
// (DDP), as transformers' Trainer sets it up.
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/stacks/stacks.h"
#include "program/pytorch/modelings/modeling.h"
#include "program/pytorch/rules.h"
#include "program/pytorch/walk/record.h"
#include "program/pytorch/wrappers/ddp.h"
#include "program/pytorch/wrappers/whole_model.h"
#include "program/runtimes/runtimes.h"

namespace vramfit {

namespace {

using eager::Module;
using eager::Torch;

std::unique_ptr<eager::Wrapper> wrap(Torch& torch, const Graph& graph, const Job& job,
                                     const std::vector<Module>& modules) {
  if (job.mesh.replicate == 1) return std::make_unique<eager::WholeModel>(torch, graph, job, modules);
  return std::make_unique<eager::Ddp>(torch, graph, job, modules, eager::buffers_of(graph, job));
}

void require_ddp(const Job& job) {
  const std::string& sharding = job.sharding;
  if (sharding != "no-shard") {
    throw NotModelled(
        fmt::format("--runtime pytorch with --sharding {} on several GPUs (--sharding no-shard is DDP; --runtime "
                    "pytorch-fsdp2 shards)",
                    sharding));
  }
  if (!uses_accelerate(job)) {
    throw NotModelled(fmt::format(
        "--sharding no-shard (--runtime pytorch-ddp) on several GPUs with {} (--sharding full-shard is; DDP "
        "is with --stack transformers, TRL's and accelerate)",
        stack_of(job).what));
  }
}

void require(const Job& job, const Cluster& cluster) {
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "pytorch");
  const bool has_autocast = uses_accelerate(job) && eager::is_mixed_in_16_bits(job);
  job_field_named("precision")
      .set(modelled, has_autocast || job.precision.name == "fp32" ? job.precision.name : "bf16-pure");
  if (has_autocast) eager::require_storage(job, modelled);
  if (has_trl(job)) eager::require_trl_adapters(job, modelled);
  eager::require_loss(job, modelled);
  if (job.modeling == Modeling::torchtune) eager::require_torchtune(job, modelled);
  if (cluster.cards() > 1) require_ddp(job);
  constexpr std::array<std::string_view, 9> kAdapters{"method",       "lora_rank",    "lora_alpha",
                                                      "lora_dropout", "lora_targets", "rslora",
                                                      "dora",         "frozen_dtype", "quantization"};
  std::span<const std::string_view> honoured;
  const bool adapts = uses_accelerate(job) || job.modeling == Modeling::torchtune;
  if (adapts && job.method != Method::full) honoured = kAdapters;
  eager::require_rules(job, modelled, cluster, honoured);
  eager::require_quantization(job);
  if (job.modeling == Modeling::torchtitan_02) {
    throw NotModelled("--modeling torchtitan-0.2 with --runtime pytorch (--runtime pytorch-fsdp2 on several GPUs is)");
  }
}

program::Program make(const program::LowerInputs& inputs) { return eager::record(inputs, wrap); }

}  // namespace

RuntimeRow pytorch_row() { return {.require_rules = require, .make_program = make}; }

}  // namespace vramfit
