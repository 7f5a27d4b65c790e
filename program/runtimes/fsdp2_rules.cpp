// What there are rules for under FSDP2 (fully_shard), by the library that calls it.
#include "program/runtimes/fsdp2_rules.h"

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/sharding/sharding.h"
#include "job/stacks/axolotl_fsdp2.h"
#include "program/not_modelled.h"
#include "program/pytorch/rules.h"
#include "program/stages/wrapping.h"

namespace vramfit {

namespace {

constexpr std::array<std::string_view, 2> kHonoured{"wrap", "wrap_embeddings"};
constexpr std::array<std::string_view, 11> kWithAdapters{"wrap",       "wrap_embeddings", "method",       "lora_rank",
                                                         "lora_alpha", "lora_dropout",    "lora_targets", "rslora",
                                                         "dora",       "frozen_dtype",    "quantization"};

bool is_of_bitsandbytes(const Job& job) {
  const bool is_torchaos = job.optimizer_implementation == OptimizerImplementation::torchao;
  return !is_torchaos &&
         (job.optimizer == "adamw-8bit" || job.optimizer_implementation == OptimizerImplementation::paged);
}

/// Rehearsed: bitsandbytes' updates have no sharding strategy (torch/distributed/tensor/_sharding_prop.py), or mix both
/// kinds of tensors themselves; Adafactor.step (transformers/optimization.py) adds a plain tensor to a DTensor.
[[noreturn]] void refuse_sharded_optimizer(const Job& job) {
  throw LibraryFails(fmt::format("--optimizer {} with FSDP2 (its first step fails on sharded weights; adamw works)",
                                 job_field_named("optimizer").get(job)));
}

/// Rehearsed: torchao's states of weights in 16 bits lack an operator that the compiled update of DTensors has
/// (OptimState8bit and OptimState4bit: aten.view.dtype).
void require_torchaos_optimizer(const Job& job) {
  const std::string optimizer = job_field_named("optimizer").get(job);
  if (!job.offload.empty()) {
    throw NotModelled(fmt::format("--optimizer {} with --offload {} and FSDP2 (without offload it is)", optimizer,
                                  job_field_named("offload").get(job)));
  }
  if (job.precision.storage == Dtype::f32) return;
  throw LibraryFails(fmt::format(
      "--optimizer {} with FSDP2 and trained weights in {} (torchao's first update of sharded states fails; "
      "in fp32 it works, and so does adamw)",
      optimizer, dtype_name(job.precision.storage)));
}

/// What accelerate and torchtune have no choice of.
void require_usual_sharding(const Job& job) {
  if (!std::holds_alternative<ReshardByDefault>(job.reshard)) refuse_field(job, "reshard");
  if (job.mesh.replicate == 1) return;
  throw NotModelled(
      fmt::format("--modeling {} with replicas (sharding over all ranks is)", job_field_named("modeling").get(job)));
}

/// accelerate gives embedding and output units of their own, and axolotl, which prepares the model itself, leaves them
/// to the root. There its kernels alone have been compared, of all adapters.
void require_wrapped_ends(const Job& job) {
  if (job.wrap_embeddings) return;
  if (job.modeling != Modeling::transformers && job.axolotl.any()) {
    throw NotModelled(fmt::format("--kernels {} with --modeling {} and FSDP2 (--stack transformers has it)",
                                  job_field_named("kernels").get(job), job_field_named("modeling").get(job)));
  }
  if (job.modeling != Modeling::transformers) {
    throw NotModelled("--wrap-embeddings off (accelerate gives them units of their own: --wrap-embeddings on)");
  }
  if (job.method != Method::full && !job.axolotl.any()) {
    throw NotModelled(
        "--wrap-embeddings off with adapters, which is axolotl's FSDP2 without its kernels (--kernels axolotl has "
        "rules, and --wrap-embeddings on is accelerate's)");
  }
  if (!job.offload.empty()) {
    throw NotModelled(
        fmt::format("--wrap-embeddings off with --offload {}, which is axolotl's FSDP2 (without offload it is)",
                    job_field_named("offload").get(job)));
  }
}

/// What accelerate sets up, for a Trainer's `fsdp` or by its plugin in a loop of one's own.
void require_accelerate(const Job& job, Job& modelled) {
  const auto value = [&](std::string_view field) { return job_field_named(field).get(job); };
  const bool is_torchaos = job.optimizer_implementation == OptimizerImplementation::torchao;
  if (is_torchaos) require_torchaos_optimizer(job);
  if (job.optimizer == "adafactor" || is_of_bitsandbytes(job)) refuse_sharded_optimizer(job);
  if (job.optimizer != "adamw" && !is_torchaos) refuse_field(job, "optimizer");
  job_field_named("precision").set(modelled, job.precision.name);
  if (has_trl(job)) eager::require_trl_adapters(job, modelled);
  // Rehearsed: TRL computes log-probabilities where the output layer's weights are, and the batch's mask is on the GPU.
  if (job.modeling == Modeling::trl_dpo && !job.offload.empty()) {
    throw LibraryFails(
        fmt::format("--offload {} with --modeling trl-dpo (DPOTrainer's first step fails; without offload "
                    "it works)",
                    value("offload")));
  }
  const bool is_adapted_grpo = job.modeling == Modeling::trl_grpo && job.method != Method::full;
  if (is_adapted_grpo && !job.offload.empty()) {  // rehearsed: the same, unless the output layer is the embedding
    throw NotModelled(
        fmt::format("--offload {} with --modeling trl-grpo and --method {} (GRPOTrainer's first step fails where the "
                    "output layer is a matrix of its own; without offload it works)",
                    value("offload"), value("method")));
  }
  if (eager::is_mixed_in_16_bits(job)) {
    const std::string_view computed = dtype_name(job.precision.compute);
    if (value("reduce_dtype") != computed) {
      throw NotModelled(fmt::format("--reduce-dtype {0} (accelerate reduces in {1}: --reduce-dtype {1})",
                                    value("reduce_dtype"), computed));
    }
    job_field_named("reduce_dtype").set(modelled, computed);
    // accelerate/utils/fsdp_utils.py: fsdp2_prepare_model, before it shards
    // Nothing, where it finds weights in 4 bits; nor does axolotl, but adapters are fp32 anyway.
    const bool is_upcast = job.method == Method::lora || (job.method == Method::full && !is_axolotls_fsdp2(job));
    if (is_upcast && job.precision.storage != Dtype::f32) {
      const bool may_be_axolotls = job.modeling == Modeling::transformers && job.method == Method::full;
      throw NotModelled(fmt::format(
          "--storage-dtype {} (with FSDP2 accelerate makes trained weights fp32, whatever the checkpoint "
          "has: --storage-dtype fp32 --state-dtype fp32{})",
          value("storage_dtype"), may_be_axolotls ? "; axolotl's FSDP2, --wrap-embeddings off, leaves them" : ""));
    }
  }
  if (!std::holds_alternative<WrapLayers>(job.wrap)) {
    throw NotModelled(fmt::format(
        "--wrap {} with accelerate's FSDP2 (units of a layer are: --wrap layer, its TRANSFORMER_BASED_WRAP)",
        value("wrap")));
  }
  require_wrapped_ends(job);
  require_usual_sharding(job);
  const std::vector<std::string> kinds{"params"};
  if (!job.offload.empty() && job.offload != kinds) {
    throw NotModelled(fmt::format("--offload {} with FSDP2 (its cpu_offload is --offload params)", value("offload")));
  }
}

/// full_finetune_distributed: FSDP2 without a policy, so that gradients are reduced in the dtype of the weights.
void require_sharded_torchtune(const Job& job, Job& modelled) {
  const auto value = [&](std::string_view field) { return job_field_named(field).get(job); };
  eager::require_torchtune(job, modelled);
  job_field_named("precision").set(modelled, job.precision.name);
  if (is_of_bitsandbytes(job)) refuse_sharded_optimizer(job);
  if (!std::holds_alternative<WrapLayers>(job.wrap)) {
    throw NotModelled(
        fmt::format("--wrap {} with --modeling torchtune (units of a layer are: --wrap layer)", value("wrap")));
  }
  require_usual_sharding(job);
}

/// torchtitan 0.2 (models/llama3/infra/parallelize.py: apply_fsdp), which wraps one way.
void require_torchtitan_02(const Job& job) {
  if (job.modeling != Modeling::torchtitan_02) return;
  if (std::holds_alternative<ReshardLastKept>(job.reshard)) refuse_field(job, "reshard");
  if (!std::holds_alternative<WrapLayers>(job.wrap)) refuse_field(job, "wrap");
  if (!job.wrap_embeddings) refuse_field(job, "wrap_embeddings");
}

}  // namespace

void require_fsdp2(const Job& job, const Cluster& cluster) {
  Job modelled = unresolved_job();
  job_field_named("runtime").set(modelled, "pytorch-fsdp2");
  job_field_named("precision").set(modelled, "bf16-mixed");
  eager::require_loss(job, modelled);
  if (uses_accelerate(job)) require_accelerate(job, modelled);
  if (is_axolotls_fsdp2(job) && eager::is_mixed_in_16_bits(job)) eager::require_storage(job, modelled);
  if (job.modeling == Modeling::torchtune) require_sharded_torchtune(job, modelled);
  const bool adapts = (uses_accelerate(job) || job.modeling == Modeling::torchtune) && job.method != Method::full;
  eager::require_rules(job, modelled, cluster, adapts ? std::span<const std::string_view>(kWithAdapters) : kHonoured);
  eager::require_quantization(job);
  if (!is_by_layer(job.wrap)) refuse_field(job, "wrap");
  require_torchtitan_02(job);
  if (job.accumulation > 1 && job.modeling == Modeling::torchtitan) refuse_field(job, "grad_accum");
  if (job.mesh.shard < 2 && is_torchtitan(job)) {
    throw NotModelled(fmt::format(
        "--sharding {} with one shard and torchtitan (--sharding full-shard on several GPUs is; DDP is with "
        "--stack transformers, TRL's and accelerate)",
        job.sharding));
  }
  if (job.mesh.shard < 2) {
    throw NotModelled(fmt::format(
        "--sharding {} with --runtime pytorch-fsdp2 on one shard (--runtime pytorch-ddp has copies)", job.sharding));
  }
  if (std::holds_alternative<ReshardGroups>(job.reshard)) refuse_field(job, "reshard");
}

}  // namespace vramfit
