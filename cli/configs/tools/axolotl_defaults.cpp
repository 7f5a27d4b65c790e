#include "cli/configs/tools/axolotl_defaults.h"

#include <string>

namespace vramfit {
namespace {

/// utils/config/__init__.py: resolve_dtype.
void finish_dtypes(Draft& draft) {
  if (!draft.has(fact::kBf16Off) && !draft.has(fact::kMixedHere)) {
    draft.assume(fact::kMixedHere, "bf16", "axolotl's default, bf16: auto, on cards of Ampere and later");
  }
  const std::string mixed = draft.get(fact::kMixedHere).value_or("");
  if (mixed == "bf16") draft.assume(fact::kWeights, "bf16", "axolotl loads them in bf16 with bf16");
  const bool is_half = mixed == "fp16" || draft.is(fact::kBits, "8");
  draft.assume(fact::kWeights, is_half ? "fp16" : "fp32",
               is_half ? "axolotl loads them in fp16 with fp16 or load_in_8bit" : "axolotl loads them so without bf16");
}

/// loaders/model.py: _configure_embedding_dtypes. What is loaded by the Trainer alone gets norms, embeddings and head
/// in fp32, and they stay so unless adapters or kernels of attention need another dtype; DeepSpeed converts all.
void finish_ends(Draft& draft) {
  const bool is_alone = !draft.is(fact::kParallel, "fsdp") && !draft.is(fact::kParallel, "deepspeed");
  if (!is_alone || draft.is(fact::kLora, "on") || draft.is(fact::kWeights, "fp32")) return;
  if (draft.is("attention", "flash-attn")) return;
  draft.not_modelled(
      "axolotl keeps norms, embeddings and the head in fp32 where all weights are trained without FSDP, DeepSpeed or "
      "flash attention; with attn_implementation: flash_attention_2 they have the others' dtype");
}

/// loaders/model.py: _set_device_map_config, _build_model and _apply_post_lora_load_setup, where `ddp` is on with FSDP,
/// too (utils/config/__init__.py); schemas/validation.py: check_fsdp2_cpu_ram_efficient_loading_w_4bit. Of whole models
/// on each GPU, those in 4 bits under FSDP2 are counted.
void finish_fsdp_loading(Draft& draft) {
  const bool is_in_4_bits = draft.is(fact::kBits, "4"), is_fsdp2 = draft.is(fact::kFsdpVersion, "2");
  const bool is_efficient = draft.is(fact::kEfficientLoading, "on");
  if (is_in_4_bits && is_fsdp2 && is_efficient) {
    draft.not_modelled("cpu_ram_efficient_loading with load_in_4bit under FSDP2, which axolotl refuses (false is)");
  } else if (is_in_4_bits && !is_fsdp2) {
    draft.not_modelled(
        "load_in_4bit under FSDP1, where axolotl loads the whole model on each GPU (fsdp_version: 2 is)");
  } else if (!is_in_4_bits && !is_efficient && !draft.is(fact::kAxolotlsDdp, "off")) {
    draft.not_modelled(
        "FSDP without cpu_ram_efficient_loading, where axolotl moves the whole model to each GPU before it shards it "
        "(cpu_ram_efficient_loading: true is)");
  }
}

/// transformers 5.23, training_args.py: _process_fsdp_args, which axolotl hands its fsdp_config to; with FSDP2
/// monkeypatch/accelerate/fsdp2.py, which prepares the model in accelerate's place.
void finish_fsdp(Draft& draft) {
  if (!draft.is(fact::kParallel, "fsdp")) return;
  draft.assume(fact::kFsdpVersion, "1", "axolotl's default");
  if (draft.is(fact::kFsdpVersion, "1")) {
    draft.assume(fact::kOriginalParameters, "on", "transformers' default with FSDP1");
  } else {
    draft.assume("wrap_embeddings", "off", "axolotl's FSDP2 leaves embedding and output layer to the root");
  }
  finish_fsdp_loading(draft);
}

/// utils/config/__init__.py: normalize_config.
void finish_batch(Draft& draft) {
  const auto rows = draft.values().find(fact::kStepRows);
  if (rows == draft.values().end()) return;
  const std::int64_t all = std::stoll(rows->second.value), each = std::stoll(draft.get("micro_batch").value());
  if (draft.has("grad_accum")) {
    draft.not_modelled("axolotl takes batch_size or gradient_accumulation_steps, not both");
  } else if (all < each) {
    draft.not_modelled("axolotl's batch_size below micro_batch_size, which is no accumulation at all");
  } else {
    draft.assume("grad_accum", std::to_string(all / each), "batch_size / micro_batch_size");
  }
}

/// utils/config/__init__.py: normalize_config; core/builders/causal.py: build.
void finish_checkpoints(const ConfigNode& root, Draft& draft) {
  const ConfigNode* const options = find_in(root, "gradient_checkpointing_kwargs");
  const bool has_options = options != nullptr && !options->is_null();
  if (draft.is("checkpointing", "full") && !has_options) {
    draft.assume(fact::kReentrant, "on", "axolotl's default without gradient_checkpointing_kwargs");
  }
  if (draft.is(fact::kAxolotlsDdp, "off")) {  // ddp_find_unused_parameters is read with ddp alone
    draft.forget(fact::kFindsUnused);
    draft.derive(fact::kFindsUnused, "auto");
  }
  draft.assume(fact::kFindsUnused, "off", "axolotl's default");
}

}  // namespace

void finish_axolotls_model(Draft& draft) {
  finish_dtypes(draft);
  finish_ends(draft);
  finish_fsdp(draft);
}

void finish_axolotl(const ConfigNode& root, Draft& draft) {
  if (draft.is(fact::kLora, "on") && draft.has(fact::kBits)) draft.assume(fact::kNested, "on", "axolotl's default");
  if (draft.is(fact::kLora, "on")) {
    draft.assume("lora_rank", "8", "PEFT's default");
    draft.assume("lora_alpha", "8", "PEFT's default");
  }
  draft.assume("seq_len", "512", "axolotl's default");
  draft.assume("micro_batch", "1", "axolotl's default");
  finish_batch(draft);
  draft.assume("grad_accum", "1", "axolotl's default");
  draft.assume("optimizer", "adamw:fused", "axolotl's default");
  draft.assume("checkpointing", "none", "axolotl's default");
  finish_checkpoints(root, draft);
  // utils/__init__.py: set_pytorch_cuda_alloc_conf, called by its command line.
  draft.assume("allocator", "expandable",
               "axolotl sets expandable_segments:True unless PYTORCH_ALLOC_CONF is set; with torch before 2.9 also "
               "roundup_power2_divisions:16, for which give --allocator "
               "expandable_segments:True,roundup_power2_divisions:16");
}

}  // namespace vramfit
