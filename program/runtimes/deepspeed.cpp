// DeepSpeed's ZeRO as transformers' Trainer sets them up (`deepspeed=` of its arguments).
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/not_modelled.h"
#include "program/pytorch/modelings/segment_reader.h"
#include "program/pytorch/rules.h"
#include "program/pytorch/walk/record.h"
#include "program/pytorch/zero/zero.h"
#include "program/pytorch/zero/zero3.h"
#include "program/runtimes/runtimes.h"
#include "program/stages/adapters.h"

namespace vramfit {

namespace {

using eager::Module;
using eager::Torch;

std::unique_ptr<eager::Wrapper> wrap(Torch& torch, const Graph& graph, const Job& job,
                                     const std::vector<Module>& modules) {
  if (job.sharding == "full-shard") return std::make_unique<eager::Zero3>(torch, graph, job, modules);
  return std::make_unique<eager::Zero>(torch, graph, job, modules);
}

constexpr std::array<std::string_view, 3> kHonoured{"bucket_bytes", "overlap_comm", "zero3_sizes"};
constexpr std::array<std::string_view, 11> kWithAdapters{"bucket_bytes", "overlap_comm", "zero3_sizes",  "method",
                                                         "lora_rank",    "lora_alpha",   "lora_dropout", "lora_targets",
                                                         "rslora",       "frozen_dtype", "quantization"};

/// What DeepSpeed makes of bf16=True and fp16=True: reductions in the model's own type (deepspeed/runtime/engine.py:
/// communication_data_type), partitions in fp32.
void require_precision(const Job& job) {
  const auto value = [&](std::string_view field) { return job_field_named(field).get(job); };
  if (!eager::is_mixed_in_16_bits(job)) {
    throw NotModelled(fmt::format("--precision {} with --runtime deepspeed (--precision bf16-mixed or fp16-mixed is)",
                                  value("precision")));
  }
  const std::string_view computed = dtype_name(job.precision.compute);
  if (value("reduce_dtype") != computed) {
    throw NotModelled(fmt::format("--reduce-dtype {0} (DeepSpeed reduces in {1}: --reduce-dtype {1})",
                                  value("reduce_dtype"), computed));
  }
  if (job.precision.storage != Dtype::f32) {
    throw NotModelled(
        fmt::format("--storage-dtype {} (DeepSpeed's partitions are fp32, whatever the checkpoint has: --storage-dtype "
                    "fp32 --state-dtype fp32)",
                    value("storage_dtype")));
  }
}

/// TRL's trainers load what is quantized as all else, which has been said of the frozen weights; DeepSpeed converts
/// what isn't quantized.
bool dequantizes_as_loaded(const Job& job) { return job.method == Method::qlora && has_trl(job); }

/// PEFT's, over a base that DeepSpeed converts as it does all weights.
void require_adapters(const Job& job) {
  if (job.method == Method::full) return;
  const Dtype computed = job.precision.compute, frozen = job.frozen_dtype.value_or(computed);
  if (frozen == computed || (dequantizes_as_loaded(job) && frozen == Dtype::f32)) return;
  if (dequantizes_as_loaded(job)) {
    throw NotModelled(
        fmt::format("--frozen-dtype {} with --method qlora and --runtime deepspeed (--frozen-dtype fp32 and {} are)",
                    dtype_name(*job.frozen_dtype), dtype_name(computed)));
  }
  throw NotModelled(fmt::format(
      "--frozen-dtype {0} with --runtime deepspeed (DeepSpeed converts frozen weights to {1}, whatever they "
      "are loaded in: --frozen-dtype {1})",
      dtype_name(*job.frozen_dtype), dtype_name(computed)));
}

/// offload_optimizer; params is offload_param beside it, which ZeRO-3 alone has. Both are given where one is pinned and
/// the other isn't.
void require_offload_of_stage(const Job& job) {
  const bool is_zero3 = job.sharding == "full-shard";
  const auto has = [&](std::string_view kind) { return std::ranges::find(job.offload, kind) != job.offload.end(); };
  const bool is_alone =
      has("optimizer") || has("optimizer:pageable") || (is_zero3 && (has("params") || has("params:pageable")));
  const bool are_mixed =
      is_zero3 && ((has("params") && has("optimizer:pageable")) || (has("params:pageable") && has("optimizer")));
  if (job.offload.empty() || (job.offload.size() == 1 && is_alone) || (job.offload.size() == 2 && are_mixed)) return;
  throw NotModelled(fmt::format("--offload {} with --runtime deepspeed (--offload optimizer is, or {})",
                                job_field_named("offload").get(job),
                                is_zero3 ? "params, each also with :pageable" : "optimizer:pageable"));
}

/// DeepSpeed has the Trainer's optimizer update its partitions, whichever it is
/// (transformers/integrations/deepspeed.py: zero_allow_untested_optimizer). With offload, accelerate puts DeepSpeed's
/// Adam of the CPU in the place of all of these (accelerate/utils/deepspeed.py: map_pytorch_optim_to_deepspeed).
void require_optimizer(const Job& job) {
  const bool is_paged = job.optimizer_implementation == OptimizerImplementation::paged;
  if (job.optimizer == "adamw" && !is_paged) return;
  const Offload offload = offload_of(job);
  for (const char* known : {"adamw", "adamw-8bit", "adafactor", "sgd"}) {
    if (job.optimizer != known) continue;
    if (!offload.states && !offload.parameters) return;
    throw NotModelled(
        fmt::format("--optimizer {} with --offload {} and --runtime deepspeed (accelerate has DeepSpeed's Adam of the "
                    "CPU in its place, with states in fp32: --optimizer adamw)",
                    job_field_named("optimizer").get(job), job_field_named("offload").get(job)));
  }
  refuse_field(job, "optimizer");
}

void require_sizes_of_stage(const Job& job) {
  if (job.sharding == "full-shard" || job.zero3_sizes == Zero3Sizes{}) return;
  throw NotModelled(
      fmt::format("--zero3-sizes with --sharding {} (ZeRO-3 has them: --sharding full-shard)", job.sharding));
}

/// What ZeRO's stage is called here.
void require_stage(const Job& job) {
  for (const char* known : {"full-shard", "shard-grad-op", "shard-optimizer"}) {
    if (job.sharding == known) return;
  }
  throw NotModelled(
      fmt::format("--runtime deepspeed with --sharding {} (--sharding full-shard is ZeRO-3, shard-grad-op ZeRO-2, "
                  "shard-optimizer ZeRO-1)",
                  job.sharding));
}

void require(const Job& job, const Cluster& cluster) {
  if (!has_trainer(job)) {
    throw NotModelled(
        fmt::format("--runtime deepspeed with --modeling {} (--modeling transformers, and TRL's trainers are)",
                    job_field_named("modeling").get(job)));
  }
  require_optimizer(job);
  require_precision(job);
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "deepspeed");
  job_field_named("precision").set(modelled, job.precision.name);
  job_field_named("loss").set(modelled, "full");
  require_adapters(job);
  if (job.modeling == Modeling::trl_grpo) eager::require_grpo(job);
  const bool adapts = job.method != Method::full;
  eager::require_rules(job, modelled, cluster, adapts ? std::span<const std::string_view>(kWithAdapters) : kHonoured);
  eager::require_quantization(job);
  require_offload_of_stage(job);
  require_sizes_of_stage(job);
  if (!std::holds_alternative<ReshardByDefault>(job.reshard)) refuse_field(job, "reshard");
  // Last, as the nearest stage that has rules hasn't any for what is refused above, either.
  require_stage(job);
}

/// The model is converted to 16 bits, whatever it is stored in, and computes without autocast; partitions are fp32.
/// None of the named precisions is that. ZeRO-3 parts adapters as PEFT makes them, in fp32 (runtime/engine.py:
/// _cast_module_mixed_precision); those of a base in 4 bits it parts later, and converts them. TRL has PEFT make them
/// in the base's type (sft_trainer.py: autocast_adapter_dtype).
Job in_16_bits(Job job) {
  Precision& precision = job.precision;
  precision.reduce = precision.output = precision.compute;
  const bool has_wide_parts = job.sharding == "full-shard" && job.method == Method::lora && !has_trl(job);
  if (!has_wide_parts) precision.storage = precision.compute;
  precision.name = "";
  if (!dequantizes_as_loaded(job)) job.frozen_dtype.reset();
  return job;
}

program::Program make(const program::LowerInputs& inputs) {
  if (has_experts(inputs.graph)) eager::refuse_model(inputs.job, "experts with --runtime deepspeed");
  const Job job = in_16_bits(inputs.job);
  return eager::record({.graph = inputs.graph,
                        .job = job,
                        .device = inputs.device,
                        .coords = inputs.coords,
                        .run = inputs.run,
                        .labels = inputs.labels,
                        .calls = inputs.calls,
                        .reserves_below = inputs.reserves_below},
                       wrap);
}

}  // namespace

RuntimeRow deepspeed_row() { return {.require_rules = require, .make_program = make}; }

}  // namespace vramfit
