#include "cli/configs/finish.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/configs/tools/axolotl_kernels.h"
#include "cli/configs/tools/checkpoint_dtype.h"
#include "cli/configs/tools/liger.h"
#include "cli/configs/tools/shared.h"
#include "job/fields/zero_text.h"
#include "job/stacks/stacks.h"

namespace vramfit {
namespace {

std::int64_t number(const Draft& draft, std::string_view name) {
  const std::optional<std::string> value = draft.get(name);
  return value ? std::stoll(*value) : 0;
}

/// A field that follows from others; what was said of it by itself stays.
void follow(Draft& draft, std::string_view field, const std::string& value, const std::string& why) {
  draft.assume(field, value, why);
}

/// Where DeepSpeed's configuration has an optimizer, the Trainer's isn't made (transformers 5.23,
/// integrations/deepspeed.py: deepspeed_optim_sched).
void finish_optimizer(Draft& draft) {
  if (draft.is(fact::kOwnOptimizer, "on")) {
    draft.forget("optimizer");
    draft.assume("optimizer", "adamw:deepspeed", "the one of DeepSpeed's configuration");
    return;
  }
  if (!draft.is("optimizer", "sgd:fused")) return;
  if (!draft.is(fact::kMomentum, "on")) {
    draft.not_modelled("SGD without momentum (with optim_args: momentum=0.9 it is)");
  }
  if (draft.is(fact::kWeightDecay, "on")) {  // torch/optim/sgd.py: _multi_tensor_sgd adds it to copies of the gradients
    draft.not_modelled("SGD with weight decay, which takes copies of all gradients (weight_decay: 0 is)");
  }
}

/// DeepSpeed's offload_optimizer and offload_param say each for itself whether it is pinned.
void finish_offload(Draft& draft) {
  const bool has_states = draft.is(fact::kPageableStates, "on");
  const bool has_parameters = draft.is(fact::kPageableParameters, "on");
  const auto change_to = [&](const char* offload) {
    draft.forget("offload");
    draft.derive("offload", offload);
  };
  if (draft.is("offload", "optimizer") && has_states) return change_to("optimizer:pageable");
  if (!draft.is("offload", "params")) return;
  if (has_states && has_parameters) return change_to("params:pageable");
  if (has_states) return change_to("params,optimizer:pageable");
  if (has_parameters) change_to("params:pageable,optimizer");
}

/// The Trainer that a file names becomes the same one with DeepSpeed, where there is that.
void use_deepspeed(Draft& draft) {
  for (const Stack& stack : stacks()) {
    if (!draft.is(fact::kLibrary, std::string(stack.name))) continue;
    const Stack& with = with_deepspeed(stack);
    if (with.name == stack.name) return;
    draft.forget(fact::kLibrary);
    return draft.assume(fact::kLibrary, std::string(with.name), std::string(with.what));
  }
}

/// Returns whether a file says what trains.
bool finish_library(Draft& draft) {
  const bool is_deepspeed = draft.is(fact::kParallel, "deepspeed");
  const bool is_known = draft.has(fact::kLibrary);
  if (!is_known) {
    draft.assume(fact::kLibrary, is_deepspeed ? "deepspeed" : "accelerate", "no file says what trains");
  } else if (is_deepspeed) {
    use_deepspeed(draft);
  }
  return is_known;
}

/// The dtype of weights as the optimizer has them. accelerate 1.15 converts what is trained to fp32 under FSDP with
/// mixed precision (utils/fsdp_utils.py), unless axolotl does its work, and DeepSpeed keeps fp32 copies.
std::string trained_dtype(Draft& draft, const std::string& mixed) {
  const std::string given = draft.get(fact::kWeights).value_or("");
  if (draft.is(fact::kParallel, "deepspeed")) return "fp32";
  if (draft.is(fact::kParallel, "fsdp") && mixed != "no" && !draft.is("wrap_embeddings", "off")) {
    if (given == "bf16" || given == "fp16") draft.note("trained weights in fp32: accelerate converts them under FSDP");
    return "fp32";
  }
  if (!given.empty()) return given;
  draft.note("weights are loaded in fp32 (a script that loads them in bf16: --storage-dtype bf16 --state-dtype bf16)");
  return "fp32";
}

void finish_precision(Draft& draft, bool is_program_known) {
  const bool is_said = draft.has(fact::kMixed) || draft.has(fact::kMixedHere) || draft.has(fact::kWeights);
  if (draft.has("precision") || (!is_said && !is_program_known)) return;
  const std::string mixed = draft.get(fact::kMixedHere).value_or(draft.get(fact::kMixed).value_or("no"));
  const bool is_lora = draft.is(fact::kLora, "on");
  const std::string weights = is_lora ? draft.get(fact::kWeights).value_or("") : trained_dtype(draft, mixed);
  if (mixed == "fp8") {
    draft.not_modelled("mixed precision in fp8, as accelerate does it");
    return;
  }
  if (mixed == "no" && weights == "fp16") {
    draft.not_modelled("weights in fp16 without autocast");
    return;
  }
  const std::string name = mixed != "no" ? mixed + "-mixed" : weights == "bf16" ? "bf16-pure" : "fp32";
  follow(draft, "precision", name,
         mixed == "no"                 ? "no autocast"
         : draft.has(fact::kZeroStage) ? "as the Trainer's flags say"
                                       : "autocast");
  const bool has_bits = draft.is(fact::kBits, "4");  // of which what isn't quantized is fp32 unless told otherwise
  if (mixed == "no" && !(is_lora && has_bits)) return;
  const bool dequantizes_as_loaded = has_bits && is_trl(draft);
  if (is_lora && !dequantizes_as_loaded && draft.is(fact::kParallel, "deepspeed")) {
    if (!weights.empty() && weights != mixed) draft.note(fmt::format("DeepSpeed converts frozen weights to {}", mixed));
  } else if (is_lora) {
    if (!weights.empty()) follow(draft, "frozen_dtype", weights, "the frozen weights'");
  } else if (weights == "bf16" && mixed == "bf16") {
    follow(draft, "storage_dtype", "bf16", "the weights'");
    follow(draft, "state_dtype", "bf16", "the weights'");
  } else if (weights != "fp32") {
    draft.not_modelled(fmt::format("weights in {} under autocast to {}", weights, mixed));
  }
}

void finish_method(Draft& draft) {
  const std::string bits = draft.get(fact::kBits).value_or("");
  if (!draft.is(fact::kLora, "on")) {
    if (!bits.empty()) draft.not_modelled(fmt::format("weights of {} bits without adapters", bits));
    for (const std::string_view field : {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "rslora", "dora"}) {
      if (!draft.has(field)) continue;
      draft.forget(field);  // of adapters that aren't used
      draft.note(fmt::format("{} belongs to adapters, which aren't used", field));
    }
    return;
  }
  draft.assume("method", bits == "4" ? "qlora" : "lora", "");
  if (bits == "4") {
    const bool is_nested = draft.is(fact::kNested, "on");
    draft.assume("quantization", is_nested ? "nf4-double" : "nf4", is_nested ? "scales are quantized, too" : "");
  } else if (bits == "8") {
    draft.assume("quantization", "int8", "");
  }
}

/// accelerate 1.15, utils/dataclasses.py: FullyShardedDataParallelPlugin.
void finish_fsdp1(Draft& draft) {
  if (!draft.is(fact::kLibrary, "transformers") && !draft.is(fact::kLibrary, "trl")) {
    draft.not_modelled(
        "FSDP1, except with transformers' Trainer and TRL's SFTTrainer (recipes use FSDP2, for which \"accelerate "
        "to-fsdp2\" rewrites a configuration)");
    return;
  }
  draft.assume("runtime", "pytorch-fsdp1", "FSDP1");
  draft.assume(fact::kBackwardPrefetch, "none", "accelerate's default");
  const std::string prefetch = draft.get(fact::kBackwardPrefetch).value_or("");
  const char* const ahead = draft.is(fact::kForwardPrefetch, "on") ? ",forward=1" : "";
  if (prefetch != "pre" || *ahead != 0) draft.assume("prefetch", "backward=" + prefetch + ahead, "FSDP1's");
  if (!draft.is(fact::kOriginalParameters, "on")) {
    draft.not_modelled("FSDP1 without use_orig_params, which accelerate's launcher leaves off by default");
  }
  if (draft.is(fact::kLimitsGathers, "off")) draft.not_modelled("FSDP1 without limit_all_gathers");
}

/// trl/trainer/model_config.py: bnb_4bit_quant_storage, without which bitsandbytes takes bytes.
void finish_codes(Draft& draft) {
  const bool has_trls_default = is_trl(draft) && draft.is(fact::kBits, "4") && !draft.has(fact::kCodesDtype);
  if (draft.is(fact::kCodesDtype, "uint8") || has_trls_default) {
    draft.not_modelled(fmt::format(
        "bnb_4bit_quant_storage: uint8{} under FSDP, which leaves such codes whole on each GPU (in the dtype that is "
        "computed in they are sharded: bfloat16)",
        has_trls_default ? ", TRL's default," : ""));
  } else if (draft.is(fact::kCodesDtype, "float32") && !draft.is("precision", "fp32")) {
    draft.not_modelled("bnb_4bit_quant_storage: float32 under FSDP, which FSDP2 would cast for its gathers");
  }
}

std::string place_of(const Draft::Value& value) {
  return fmt::format("{}:{}: {}", printable(value.file, 300), value.line, printable(value.key));
}

/// transformers 5.23, trainer.py: the Trainer refuses to checkpoint what FSDP checkpoints.
void finish_fsdp_checkpointing(Draft& draft) {
  if (!draft.is(fact::kFsdpCheckpointing, "on")) return;
  const Draft::Value& by_fsdp = draft.values().find(fact::kFsdpCheckpointing)->second;
  const auto other = draft.values().find("checkpointing");
  const bool is_checkpointed = other != draft.values().end() && other->second.value != "none";
  if (is_checkpointed && !(other->second.file.empty() && draft.is(fact::kLibrary, "transformers"))) {
    const std::string where =
        other->second.file.empty() ? "TRL's default gradient_checkpointing: true" : place_of(other->second);
    throw InputError(fmt::format(
        "{} checkpoints activations, and so does {}: the Trainer refuses both; leave the second out or make it false",
        place_of(by_fsdp), where));
  }
  if (is_checkpointed) draft.not_modelled("activations that FSDP and the program both checkpoint");
  if (!draft.is(fact::kFsdpVersion, "2") && draft.is(fact::kLora, "on")) {
    // Rehearsed: PEFT's policy makes checkpoints of adapters within those of blocks, which compute in other types
    // again.
    draft.not_modelled(
        "activation_checkpointing by FSDP1 around adapters, whose first step fails (gradient_checkpointing: true "
        "works)");
  }
  draft.forget("checkpointing");
  draft.derive("checkpointing", "full");
}

/// docs/stacks.md: loops of one's own are counted with cpu_ram_efficient_loading, the Trainer's without.
void finish_loading(Draft& draft) {
  const auto loading = draft.values().find(fact::kEfficientLoading);
  if (loading == draft.values().end()) return;
  const bool is_on = loading->second.value == "on";
  if (!is_on && draft.is(fact::kLibrary, "accelerate")) {
    draft.not_modelled(
        fmt::format("{}: false, with which loading peaks differently than in a training loop that sets it",
                    place_of(loading->second)));
  } else if (is_on && !draft.is(fact::kLibrary, "accelerate")) {
    draft.note(
        "weights are counted as loaded without cpu_ram_efficient_loading; with it, the measured peak was within 0.5 % "
        "of that");
  }
}

void finish_fsdp(Draft& draft) {
  require_switch_of_fsdp2(draft);
  finish_codes(draft);
  finish_fsdp_checkpointing(draft);
  finish_loading(draft);
  draft.assume(fact::kFsdpVersion, "1", "accelerate's default");
  if (draft.is(fact::kFsdpVersion, "1")) finish_fsdp1(draft);
  const std::int64_t least = number(draft, fact::kMinimum);
  if (least > 0) draft.assume("wrap", fmt::format("size:{}", least), "by size");
  if (draft.has_accelerates_default_wrap && !draft.has_trainers_default_wrap) {
    draft.assume("wrap", "none", "accelerate's default without fsdp_auto_wrap_policy: NO_WRAP");
  }
  const std::int64_t replicas = number(draft, fact::kReplicas), shards = number(draft, fact::kShards);
  if (replicas > 1) {
    const bool is_zero2 = draft.is(fact::kFsdpStrategy, "shard-grad-op");
    draft.assume("sharding", is_zero2 ? "hybrid-shard-zero2" : "hybrid-shard", "replicas");
    if (shards > 0) draft.assume("mesh", fmt::format("replicate={},shard={}", replicas, shards), "");
  }
  draft.assume("sharding", draft.get(fact::kFsdpStrategy).value_or("full-shard"), "FSDP");
}

void finish_zero3_sizes(Draft& draft) {
  Job job;
  for (const std::string_view name : zero3_size_names()) {
    if (const auto size = draft.get(zero3_fact(name))) set_zero3_size(job.zero3_sizes, name, *size);
  }
  if (job.zero3_sizes != Zero3Sizes{}) draft.derive("zero3_sizes", get_zero3_sizes(job));
}

void finish_grpo(Draft& draft) {
  std::vector<std::string> choices;
  if (draft.is(fact::kReference, "on")) choices.emplace_back("reference");
  const std::string iterations = draft.get(fact::kIterations).value_or("1");
  if (iterations != "1") choices.push_back(fmt::format("num_iterations={}", iterations));
  const std::string micro_batches = draft.get(fact::kGeneration).value_or("");
  if (!micro_batches.empty()) choices.push_back(fmt::format("steps_per_generation={}", micro_batches));
  if (!choices.empty()) draft.derive("grpo", fmt::format("{}", fmt::join(choices, ",")));
}

/// The Trainer looks for unused parameters unless activations are checkpointed, and always in PEFT's model.
void finish_ddp(Draft& draft) {
  if (const auto other = draft.values().find(fact::kOtherDdp); other != draft.values().end()) {
    draft.not_modelled(
        fmt::format("{}: DDP with settings other than the Trainer's usual ones", place_of(other->second)));
  }
  const auto finds = draft.values().find(fact::kFindsUnused);
  if (finds == draft.values().end() || finds->second.value == "auto") return;
  const bool is_usual = draft.is("checkpointing", "none") || draft.is(fact::kLora, "on");
  if (is_usual != (finds->second.value == "on")) draft.derive("find_unused_parameters", finds->second.value);
}

void finish_sharding(Draft& draft) {
  const GpuCount gpus = gpu_count(draft);
  const bool is_alone = gpus.nodes * gpus.per_node == 1;
  const std::string parallel = draft.get(fact::kParallel).value_or("ddp");
  if (parallel == "ddp" && !is_alone) finish_ddp(draft);
  if (draft.is(fact::kParallel, "fsdp")) {
    finish_fsdp(draft);
  } else if (draft.is(fact::kParallel, "deepspeed")) {
    constexpr std::array<std::string_view, 4> kStages{"no-shard", "shard-optimizer", "shard-grad-op", "full-shard"};
    if (!draft.has(fact::kZeroStage) && draft.has(fact::kUnreadFile)) return;
    const auto stage = static_cast<std::size_t>(number(draft, fact::kZeroStage));
    if (stage == 0) {
      draft.not_modelled("ZeRO stage 0 (stages 1 to 3 are modelled, and the DeepSpeed recipe rehearses ZeRO-3)");
    }
    draft.assume("sharding", std::string(kStages[stage]), "ZeRO");
    const bool are_numbers = draft.has(fact::kCodesDtype) && !draft.is(fact::kCodesDtype, "uint8");
    if (stage == 3 && are_numbers) draft.not_modelled("bnb_4bit_quant_storage other than uint8 with ZeRO-3");
    finish_zero3_sizes(draft);
  } else if (draft.is(fact::kParallel, "ddp") && !is_alone) {
    draft.assume("sharding", "no-shard", "DDP");
  } else if (!draft.has(fact::kParallel) && gpus.nodes * gpus.per_node > 1 && !draft.is(fact::kLibrary, "torchtune")) {
    draft.assume("sharding", "no-shard", "several GPUs without FSDP or DeepSpeed are DDP");
  } else if (!draft.has(fact::kParallel) && gpus.per_node == 0) {
    draft.assume(fact::kSeveral, "ddp", "neither FSDP nor DeepSpeed is asked for: --sharding no-shard");
  }
}

/// torchtune and torchtitan shard by themselves.
void finish_mesh(Draft& draft) {
  const std::int64_t replicas = number(draft, fact::kReplicas), shards = number(draft, fact::kShards);
  if (replicas <= 1) return;
  if (shards == 1) {
    draft.assume("sharding", "no-shard", "only replicas");
    return;
  }
  draft.assume("sharding", "hybrid-shard", "replicas");
  if (shards > 0) draft.assume("mesh", fmt::format("replicate={},shard={}", replicas, shards), "");
}

/// With other tools than TRL, documents that see only themselves need masks unless the flash-attn package has kernels
/// for them. LLaMA-Factory then takes one row at a time (data/collator.py: SFTDataCollatorWith4DAttentionMask).
void finish_packing(Draft& draft) {
  const auto packing = draft.values().find(fact::kPacking);
  if (packing == draft.values().end() || (is_trl(draft) && draft.is(fact::kStrategy, "wrapped"))) return;
  const std::string place = place_of(packing->second);
  if (!is_trl(draft) && !draft.is("attention", "flash-attn")) {
    return draft.not_modelled(place + ": documents in one row without the flash-attn package (flash_attention_2 is)");
  }
  draft.derive("packing", "bfd");
  if (packing->second.value != "one row" || draft.get("micro_batch").value_or("1") == "1") return;
  draft.not_modelled(place + ": LLaMA-Factory fails with fa2 and more than one row (per_device_train_batch_size: 1)");
}

bool is_zero3(const Draft& draft) { return draft.is(fact::kParallel, "deepspeed") && draft.is(fact::kZeroStage, "3"); }

/// Where the Trainer enables LLaMA-Factory's checkpoints once more, what both ask for has to be the same.
void finish_checkpoints_of_factory(Draft& draft, bool is_on) {
  const auto trainers = draft.values().find(fact::kTrainersCheckpoints);
  if (trainers == draft.values().end()) return;
  if (is_on && !draft.is(fact::kCheckpointOptions, "on") && !draft.is("checkpointing", "none")) return;
  draft.not_modelled(
      fmt::format("{}: true together with other keys of LLaMA-Factory's checkpoints, which the Trainer then enables "
                  "once more: leave it out, so that disable_gradient_checkpointing and use_reentrant_gc decide",
                  place_of(trainers->second)));
}

/// Those of FSDP's own wrapper never do, and LLaMA-Factory's not where the launcher says FSDP2. TRL changes the options
/// that it is given beside adapters under ZeRO-3 (trl 1.16, trainer/sft_trainer.py); without any, its own don't reach
/// the model at once.
void finish_reentrant(Draft& draft) {
  const bool is_by_factory = draft.is(fact::kFactoryReentrant, "on") && !draft.is(fact::kLaunchedFsdp, "2");
  finish_checkpoints_of_factory(draft, is_by_factory);
  if (draft.is("checkpointing", "none") || draft.is(fact::kFsdpCheckpointing, "on")) return;
  bool is_on = draft.is(fact::kReentrant, "on") || is_by_factory;
  const bool is_forced = is_trl(draft) && draft.is(fact::kLora, "on") && is_zero3(draft);
  if (!is_on && is_forced && draft.is(fact::kCheckpointOptions, "on")) {
    draft.note("checkpoints re-enter autograd: with adapters under ZeRO-3, TRL changes use_reentrant to true");
    is_on = true;
  }
  if (is_on) draft.derive("reentrant_checkpoints", "on");
}

}  // namespace

GpuCount gpu_count(const Draft& draft) {
  const std::int64_t nodes = std::max<std::int64_t>(1, number(draft, fact::kNodes));
  const std::int64_t processes = number(draft, fact::kProcesses), per_node = number(draft, fact::kPerNode);
  if (per_node > 0) return {.nodes = nodes, .per_node = per_node};
  // accelerate launch then starts one process, whatever num_processes says (commands/launch.py: simple_launcher).
  if (draft.is(fact::kParallel, "none")) return {.nodes = 1, .per_node = 1};
  if (processes == 0) return {.nodes = nodes, .per_node = number(draft, fact::kVisible)};
  if (processes % nodes != 0) {
    throw InputError(fmt::format("{} GPUs can't be divided by {} nodes", processes, nodes));
  }
  return {.nodes = nodes, .per_node = processes / nodes};
}

void finish(Draft& draft) {
  const bool is_program_known = finish_library(draft);
  finish_optimizer(draft);
  finish_offload(draft);
  finish_method(draft);
  const std::string library = draft.get(fact::kLibrary).value_or("");
  if (library == "torchtune" || library == "torchtitan") {
    finish_mesh(draft);
    return;
  }
  finish_checkpoint_dtype(draft);
  finish_precision(draft, is_program_known);
  finish_sharding(draft);
  finish_grpo(draft);
  finish_packing(draft);
  finish_reentrant(draft);
  finish_liger(draft);
  add_adapter_kernels(draft);
}

}  // namespace vramfit
