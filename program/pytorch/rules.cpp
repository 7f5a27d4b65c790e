#include "program/pytorch/rules.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/cluster/precision_support.h"
#include "job/fields/job_fields.h"
#include "job/stacks/stacks.h"
#include "program/not_modelled.h"
#include "program/optimizers/optimizers.h"
#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/modelings/axolotl.h"
#include "program/stages/optimizer_in_backward.h"

namespace vramfit::eager {

namespace {

/// flash_api.cpp (2.8.3) checks both. transformers converts fp32 to what autocast computes in, and otherwise to what
/// the weights are in.
void require_flash_attn(const Job& job, const Cluster& cluster) {
  if (!uses_accelerate(job)) refuse_field(job, "attention");
  if (cluster.card.device.compute_capability < 80) {
    throw LibraryFails(fmt::format(
        "--attention flash-attn on {} (the package has kernels from compute capability 8.0 on: --attention auto)",
        cluster.card.name));
  }
  if (job.precision.compute == Dtype::f32) {
    throw LibraryFails("--attention flash-attn with --precision fp32 (its kernels compute in 16 bits: bf16-mixed)");
  }
}

/// In December 2024 torchtitan set which kernels there are, and cuDNN's was not among them. transformers has code of
/// its own (eager).
void require_attention(const Job& job, const Cluster& cluster) {
  const bool is_left_to_pytorch =
      uses_accelerate(job) || job.modeling == Modeling::torchtune || job.modeling == Modeling::torchtitan_02;
  if (job.attention == Attention::math && uses_accelerate(job)) return;
  if (job.attention == Attention::flash_attn) return require_flash_attn(job, cluster);
  if (job.precision.compute == Dtype::f32) {  // neither flash nor cuDNN computes in it
    if (job.attention != Attention::automatic && job.attention != Attention::efficient) refuse_field(job, "attention");
    return;
  }
  const bool has_flash = cluster.card.device.compute_capability >= 80;
  if (job.attention == Attention::flash && has_flash) return;
  const Device& device = cluster.card.device;
  const bool asks_for_cudnn = job.modeling == Modeling::torchtitan_02;  // before flash attention, on any card
  const bool has_cudnn = asks_for_cudnn || widest_cudnn_attention(device) > 0;
  if (job.attention == Attention::cudnn && is_left_to_pytorch && has_cudnn) return;
  if (job.attention != Attention::automatic) refuse_field(job, "attention");
  if (has_cudnn && !is_left_to_pytorch) {
    throw NotModelled("--attention cudnn, which PyTorch picks on this card (--attention flash is)");
  }
}

/// The walk of PyTorch's step keeps what torchtitan's policy keeps; transformers and torchtune checkpoint all layers or
/// none.
void require_checkpointing(const Job& job) {
  const auto* selective = std::get_if<SelectiveCheckpointing>(&job.checkpointing);
  const bool is_all_or_none = std::holds_alternative<NoCheckpointing>(job.checkpointing) ||
                              std::holds_alternative<FullCheckpointing>(job.checkpointing);
  const bool has_all_or_none = uses_accelerate(job) || job.modeling == Modeling::torchtune;
  if (has_all_or_none && !is_all_or_none) refuse_field(job, "checkpointing");
  const bool is_other = selective != nullptr && !selective->kept.empty();
  if (is_other || std::holds_alternative<BudgetCheckpointing>(job.checkpointing)) refuse_field(job, "checkpointing");
}

/// Only transformers' models were compared with traces of cards that have no flash attention.
void require_card(const Job& job, const Cluster& cluster) {
  const std::string runtime = job_field_named("runtime").get(job);
  if (cluster.is_cpu()) throw NotModelled(fmt::format("--runtime {} on CPU ranks (--stack vramfit is)", runtime));
  const int capability = cluster.card.device.compute_capability;
  if (!torch_has_kernels(capability)) {
    throw NotModelled(fmt::format("--runtime {} on {}, for which PyTorch {} has no kernels", runtime, cluster.card.name,
                                  kTorchVersion));
  }
  if (capability < 80 && !uses_accelerate(job)) {
    throw NotModelled(
        fmt::format("--modeling {} on cards below compute capability 8.0, which have no flash attention (--stack "
                    "transformers and vramfit have rules there)",
                    job_field_named("modeling").get(job)));
  }
  if (capability < 80 && job.precision.compute == Dtype::bf16) {
    throw NotModelled(
        fmt::format("--precision {} with --runtime {} on {}, which has no bf16 (--precision fp16-mixed is)",
                    job.precision.name, runtime, cluster.card.name));
  }
}

/// A Trainer has no name for AdamW's for-loop. Of torch's optimizers, AdamW in two of its forms was compared with
/// traces, and with DeepSpeed SGD; around transformers' models bitsandbytes' AdamW and transformers' Adafactor;
/// torchao's only under Trainers.
bool is_optimizer_of_loop(const Job& job) {
  const OptimizerImplementation form = job.optimizer_implementation;
  if (form == OptimizerImplementation::deepspeed || job.optimizer == "sgd") return job.runtime == Runtime::deepspeed;
  if (form == OptimizerImplementation::torchao) return has_trainer(job) && job.runtime != Runtime::deepspeed;
  if (has_trainer(job)) return form != OptimizerImplementation::loop;
  const bool is_loop = form == OptimizerImplementation::loop, is_paged = form == OptimizerImplementation::paged;
  const bool is_of_adamw = !is_loop && (job.optimizer == "adamw" || job.optimizer == "adamw-8bit");
  if (job.modeling == Modeling::torchtune) return is_of_adamw;
  if (job.modeling == Modeling::accelerate) return is_of_adamw || job.optimizer == "adafactor";
  return job.optimizer == "adamw" && !is_paged;
}

bool is_ddp(const Job& job) { return job.runtime == Runtime::pytorch && job.mesh.replicate > 1; }

/// Of the Trainer, only where documents are told apart by positions alone.
bool has_packing(const Job& job) {
  return job.modeling == Modeling::trl ||
         (job.modeling == Modeling::transformers && job.attention == Attention::flash_attn);
}

/// Where nothing is checkpointed, or another than DDP trains, the Trainer doesn't read them. DDP by itself doesn't look
/// for unused parameters.
bool is_choice_of_trainer(const Job& job, std::string_view field) {
  if (field == "kernels") return has_trainer(job) && job.kernels != KernelSource::vramfit;
  if (!has_trainer(job)) return field == "find_unused_parameters" && !finds_unused_parameters(job);
  const bool reenters = field == "reentrant_checkpoints" && job.runtime != Runtime::pytorch_fsdp1;
  return reenters || field == "find_unused_parameters";
}

/// Rehearsed: DDP takes what forward has made within checkpoints for unused, and fails when backward makes its
/// gradients (csrc/distributed/c10d/reducer.cpp: mark_variable_ready).
void require_reentrant(const Job& job) {
  const bool is_checkpointed = !std::holds_alternative<NoCheckpointing>(job.checkpointing);
  if (!job.reentrant_checkpoints || !is_checkpointed || !is_ddp(job) || !finds_unused_parameters(job)) return;
  throw LibraryFails(fmt::format(
      "--reentrant-checkpoints on with DDP that looks for unused parameters{} (it takes those of checkpoints for "
      "unused, and the first step fails: --find-unused-parameters off)",
      job.find_unused_parameters ? "" : ", as the Trainer's does with adapters"));
}

}  // namespace

bool is_mixed_in_16_bits(const Job& job) {
  return job.precision.name == "bf16-mixed" || job.precision.name == "fp16-mixed";
}

void require_rules(const Job& job, const Job& modelled, const Cluster& cluster,
                   std::span<const std::string_view> honoured) {
  const auto value = [&](std::string_view field) { return job_field_named(field).get(job); };
  const bool has_code = job.modeling != Modeling::vramfit;
  if (!has_code) {
    throw NotModelled(fmt::format("--runtime {} with --modeling {}", value("runtime"), value("modeling")));
  }
  require_card(job, cluster);
  if (job.packs_documents && job.attention == Attention::flash) {
    throw NotModelled(
        "--packing bfd with --attention flash (PyTorch's own flash attention takes no masks, which documents then "
        "have: --attention auto, or flash-attn, the package of that name)");
  }
  if (job.packs_documents && checked_mul(job.micro_batch, job.sequence) < 3) {
    throw NotModelled("--packing bfd with --seq-len 2 and --micro-batch 1 (no token has a label then)");
  }
  if (has_trl(job) && job.sequence < 2) {
    throw NotModelled(fmt::format("--modeling {} with --seq-len 1 (no token has a label then)", value("modeling")));
  }
  for (const JobField& field : job_fields()) {
    const bool is_honoured = field.honoured_by == HonouredBy::every_runtime ||
                             std::ranges::find(honoured, field.name) != honoured.end() ||
                             (field.name == "grpo" && job.modeling == Modeling::trl_grpo) ||
                             (field.name == "packing" && has_packing(job)) || is_choice_of_trainer(job, field.name);
    if (!is_honoured && field.get(job) != field.get(modelled)) refuse_field(job, field.name);
  }
  if (job.optimizer == "adamw-4bit" && !has_optimizer(job) && has_trainer(job) &&
      job.modeling == Modeling::transformers && job.runtime == Runtime::pytorch) {
    throw NotModelled(
        fmt::format("--optimizer {} with --runtime {} (the Trainer's adamw_torch_4bit is: --optimizer "
                    "adamw-4bit:torchao)",
                    value("optimizer"), value("runtime")));
  }
  if (job.optimizer_implementation == OptimizerImplementation::deepspeed && job.runtime != Runtime::deepspeed) {
    throw NotModelled(fmt::format(
        "--optimizer {} with --runtime {} (DeepSpeed makes it: --stack {} has it; here: --optimizer {}:fused)",
        value("optimizer"), value("runtime"), name_with_deepspeed(job), job.optimizer));
  }
  if (!has_optimizer(job) || !is_optimizer_of_loop(job)) refuse_field(job, "optimizer");
  require_checkpointing(job);
  require_reentrant(job);
  require_axolotl_kernels(job);
  require_attention(job, cluster);
}

/// Each part is walked through; torchtitan's default is 8.
constexpr std::int64_t kMostParts = 4096;

/// CEWithChunkedOutputLoss
void require_loss_of_torchtune(const Job& job, Job& modelled) {
  const auto* chunked = std::get_if<ChunkedLoss>(&job.loss);
  if (chunked == nullptr || chunked->in_forward || chunked->chunks > kMostParts) {
    throw NotModelled(fmt::format(
        "--loss {} with --modeling torchtune (its recipes have 8 parts: --loss chunked:8; up to chunked:{})",
        job_field_named("loss").get(job), kMostParts));
  }
  modelled.loss = job.loss;
}

void require_loss(const Job& job, Job& modelled) {
  modelled.loss = FullLoss{};
  const auto* chunked = std::get_if<ChunkedLoss>(&job.loss);
  if (job.modeling == Modeling::torchtune) return require_loss_of_torchtune(job, modelled);
  if (chunked == nullptr) return;
  const std::string loss = job_field_named("loss").get(job);
  if (job.modeling != Modeling::torchtitan) {
    throw NotModelled(fmt::format("--loss {} with --modeling {} (--modeling torchtitan has chunked:N)", loss,
                                  job_field_named("modeling").get(job)));
  }
  if (chunked->in_forward) {
    throw NotModelled(
        fmt::format("--loss {0} with --modeling torchtitan (its loss makes gradients in backward: --loss "
                    "chunked:{1})",
                    loss, chunked->chunks));
  }
  if (chunked->chunks > kMostParts) {
    throw NotModelled(fmt::format("--loss {} with --modeling torchtitan (up to {} parts are)", loss, kMostParts));
  }
  if (job.sequence % chunked->chunks != 0) {
    throw NotModelled(fmt::format("--loss {} with --modeling torchtitan and --seq-len {} (parts of equal length are)",
                                  loss, job.sequence));
  }
  modelled.loss = job.loss;
}

/// recipes/full_finetune_single_device.py and its like: __init__
void require_activation_offload(const Job& job) {
  if (job.offload.empty()) return;
  if (job.offload != std::vector<std::string>{"activations"}) refuse_field(job, "offload");
  if (std::holds_alternative<NoCheckpointing>(job.checkpointing)) {
    throw LibraryFails(
        "--offload activations with --checkpointing none and --modeling torchtune (its recipes want both: "
        "--checkpointing full)");
  }
}

void require_torchtune(const Job& job, Job& modelled) {
  modelled.rotary_positions = job.rotary_positions;
  require_activation_offload(job);
  modelled.offload = job.offload;
  if (job.method == Method::full) modelled.optimizer_in_backward = job.optimizer_in_backward;
  if (modelled.optimizer_in_backward) require_optimizer_in_backward(job);
  const auto value = [&](std::string_view field) { return job_field_named(field).get(job); };
  const bool is_fp32 = job.precision.name == "fp32";
  if (!is_fp32 && job.precision.name != "bf16-pure") {
    throw NotModelled(
        fmt::format("--precision {} with --modeling torchtune (its recipes' dtype bf16 is: --precision bf16-pure; and "
                    "fp32)",
                    value("precision")));
  }
  if (is_fp32 && job.method == Method::qlora) {
    throw NotModelled("--precision fp32 with --method qlora and --modeling torchtune (--precision bf16-pure is)");
  }
  if (job.lora.has_magnitudes && job.method == Method::qlora) {
    throw NotModelled("--dora on with --method qlora and --modeling torchtune (--method lora is)");
  }
  if (job.method == Method::full) return;
  if (job.lora.rank_stabilized) refuse_field(job, "rslora");
  if (job.frozen_dtype && *job.frozen_dtype != job.precision.storage) {
    throw NotModelled(
        fmt::format("--frozen-dtype {} with --modeling torchtune (frozen weights have the dtype of the others: "
                    "--frozen-dtype {})",
                    value("frozen_dtype"), dtype_name(job.precision.storage)));
  }
}

void require_storage(const Job& job, Job& modelled) {
  if (job.method != Method::full || job.precision.storage != Dtype::bf16) return;
  if (job.precision.name == "fp16-mixed") {
    throw LibraryFails(
        "--storage-dtype bf16 with --precision fp16-mixed (PyTorch's GradScaler has no kernel for gradients in bf16: "
        "--storage-dtype fp32)");
  }
  if (job.precision.state != Dtype::bf16) {
    throw NotModelled(
        fmt::format("--storage-dtype bf16 with --state-dtype {} (PyTorch's optimizers keep states as the weights are: "
                    "--state-dtype bf16)",
                    dtype_name(job.precision.state)));
  }
  modelled.precision.storage = modelled.precision.state = Dtype::bf16;
}

void require_quantization(const Job& job) {
  if (job.quantization == "none") return;
  const auto value = [&](std::string_view field) { return job_field_named(field).get(job); };
  if (job.modeling == Modeling::torchtune) {
    if (job.method == Method::qlora && job.quantization == "nf4-double") return;
    throw NotModelled(
        fmt::format("--method {} with --quantization {} and --modeling torchtune (its QLoRA has NF4 with scales that "
                    "are quantized, too: --method qlora --quantization nf4-double)",
                    value("method"), job.quantization));
  }
  if (job.method == Method::qlora && is_mixed_in_16_bits(job) && job.quantization.starts_with("nf4")) return;
  throw NotModelled(
      fmt::format("--method {} with --quantization {} and --precision {} (--method qlora with nf4 or nf4-double and "
                  "bf16-mixed or fp16-mixed is)",
                  value("method"), job.quantization, job.precision.name));
}

constexpr std::int64_t kMostScored = 256;

namespace {

/// "--grpo CHOICES with "; nothing where nothing is chosen.
std::string chosen(const Job& job) {
  const std::string choices = job_field_named("grpo").get(job);
  return choices.empty() ? "" : fmt::format("--grpo {} with ", choices);
}

}  // namespace

/// trl/trainer/grpo_config.py: __post_init__. A step of which only some micro-batches begin with completions made anew
/// has no rules.
void require_grpo(const Job& job) {
  if (micro_batches_of_generation(job) > kMostScored) {  // each is walked through
    throw NotModelled(fmt::format("{}--grad-accum {}: completions of {} micro-batches at once (up to {} are)",
                                  chosen(job), job.accumulation, micro_batches_of_generation(job), kMostScored));
  }
  if (micro_batches_of_generation(job) % job.accumulation != 0) {
    throw NotModelled(
        fmt::format("--grpo {} with --grad-accum {} (a multiple of it is, such as steps_per_generation={})",
                    job_field_named("grpo").get(job), job.accumulation, 2 * job.accumulation));
  }
  const bool is_kept = reuses_completions(job);
  const bool is_zero3 = job.runtime == Runtime::deepspeed && job.sharding == "full-shard";
  if (is_zero3 && is_kept) {
    throw NotModelled(
        fmt::format("--grpo {} with ZeRO-3 (its order of gathers is another one in steps that train on completions "
                    "again: --sharding shard-grad-op is)",
                    job_field_named("grpo").get(job)));
  }
  if (is_zero3 && job.method != Method::full && job.grpo.has_reference && job.accumulation > 1) {
    throw NotModelled(
        fmt::format("--grpo {} with --method {}, ZeRO-3 and --grad-accum {} (--grad-accum 1, or --sharding "
                    "shard-grad-op is)",
                    job_field_named("grpo").get(job), job_field_named("method").get(job), job.accumulation));
  }
  const bool adapts = job.runtime == Runtime::pytorch_fsdp2 && job.method == Method::lora;
  if (adapts && is_mixed_in_16_bits(job) && job.grpo.has_reference && !is_kept) {
    throw NotModelled(
        fmt::format("--grpo {} with --method lora and FSDP2 (a first forward without adapters, unless transformers' "
                    "generate has made one, and FSDP2 then fails on gradients in {}: --sharding no-shard is)",
                    job_field_named("grpo").get(job), dtype_name(job.precision.compute)));
  }
  if (completions_of_group(job) > 1) return;
  throw LibraryFails("--modeling trl-grpo with one completion a step (a prompt needs two or more: --micro-batch 8)");
}

namespace {

/// PEFT's copy of the head that scores rows has the base's type (ModulesToSaveWrapper), unless accelerate widens it.
void require_score_dtype(const Job& job) {
  if (job.method != Method::lora || job.runtime == Runtime::pytorch_fsdp2 || !job.frozen_dtype) return;
  if (*job.frozen_dtype == job.precision.storage) return;
  throw NotModelled(
      fmt::format("--modeling trl-reward with --method lora and --frozen-dtype {} (PEFT trains the head in that dtype "
                  "beside adapters in {}: --frozen-dtype fp32, or FSDP2, with which both are fp32)",
                  dtype_name(*job.frozen_dtype), dtype_name(job.precision.storage)));
}

}  // namespace

void require_trl_adapters(const Job& job, Job& modelled) {
  const std::string modeling = job_field_named("modeling").get(job);
  const bool keeps_bf16_adapters = job.method == Method::qlora && job.runtime != Runtime::pytorch_fsdp1;
  if (keeps_bf16_adapters && job.precision.name == "fp16-mixed") {
    throw LibraryFails(
        fmt::format("--modeling {} with --method qlora and --precision fp16-mixed (its adapters over 4 bits are bf16, "
                    "and PyTorch's GradScaler has no kernel for gradients in bf16: bf16-mixed, or --modeling "
                    "transformers)",
                    modeling));
  }
  if (keeps_bf16_adapters && (job.precision.storage != Dtype::bf16 || job.precision.state != Dtype::bf16)) {
    throw NotModelled(
        fmt::format("--modeling {} with --method qlora, --storage-dtype {} and --state-dtype {} (its adapters over 4 "
                    "bits are bf16, and so are their states: --storage-dtype bf16 --state-dtype bf16)",
                    modeling, dtype_name(job.precision.storage), dtype_name(job.precision.state)));
  }
  if (job.method == Method::qlora && job.lora.has_magnitudes) {  // sft_trainer.py and its like: __init__
    throw NotModelled(
        fmt::format("--modeling {} with --method qlora and --dora on (TRL keeps magnitudes in fp32 beside adapters in "
                    "bf16: --method lora, or --modeling transformers)",
                    modeling));
  }
  if (keeps_bf16_adapters) modelled.precision.storage = modelled.precision.state = Dtype::bf16;
  if (job.method == Method::lora && job.precision.name == "bf16-pure") {
    throw NotModelled(fmt::format(
        "--modeling {} with --method lora and --precision bf16-pure (its adapters are fp32: bf16-mixed is)", modeling));
  }
  if (is_classifier(job)) require_score_dtype(job);
  if (job.modeling == Modeling::trl_grpo) require_grpo(job);
}

}  // namespace vramfit::eager
