#include <array>

#include <fmt/format.h>

#include "cli/configs/export/export.h"
#include "cli/configs/export/hf_values.h"
#include "job/fields/kernels_text.h"
#include "job/sharding/sharding.h"

namespace vramfit {
namespace {

constexpr std::array kFields{
    FieldRow{"method", Carried::written},
    FieldRow{"precision", Carried::written},
    FieldRow{"storage_dtype", Carried::written},
    FieldRow{"state_dtype", Carried::written},
    FieldRow{"sharding", Carried::written},
    FieldRow{"wrap", Carried::marked, "layer", "layers are wrapped"},
    FieldRow{"wrap_embeddings", Carried::marked, "off", "embeddings and output belong to the root's unit"},
    FieldRow{"checkpointing", Carried::written},
    FieldRow{"offload", Carried::written},
    FieldRow{"optimizer", Carried::written},
    FieldRow{"loss", Carried::marked, "full", "all logits exist at once"},
    FieldRow{"attention", Carried::written},
    FieldRow{"frozen_dtype", Carried::written},
    FieldRow{"quantization", Carried::written},
    FieldRow{"lora_rank", Carried::written},
    FieldRow{"lora_alpha", Carried::written},
    FieldRow{"lora_dropout", Carried::written},
    FieldRow{"lora_targets", Carried::written},
    FieldRow{"rslora", Carried::written},
    FieldRow{"dora", Carried::written},
    FieldRow{"seq_len", Carried::written},
    FieldRow{"micro_batch", Carried::written},
    FieldRow{"grad_accum", Carried::written},
    FieldRow{"global_batch", Carried::implied},
    FieldRow{"reentrant_checkpoints", Carried::written},
    FieldRow{"find_unused_parameters", Carried::implied},
    FieldRow{"kernels", Carried::written},
    FieldRow{"packing", Carried::written},
};

/// axolotl loads weights in bf16 with bf16: true, and its FSDP2 leaves them so.
std::string precision_lines(ExportWriter& writer) {
  const std::string name = writer.value("precision"), weights = loaded_dtype(writer);
  if (name == "bf16-mixed") {
    if (weights != "bf16") {
      if (!writer.is("method", "full")) {
        writer.refuse("frozen_dtype", "axolotl loads weights in bf16, which --frozen-dtype bf16 is");
      }
      writer.refuse("precision",
                    fmt::format("axolotl loads weights in bf16, which {}--storage-dtype bf16 --state-dtype "
                                "bf16 are",
                                is_sharded(writer) ? "--wrap-embeddings off " : ""));
    }
    return "bf16: true\nfp16: false\n";
  }
  if (name == "bf16-pure") return "bf16: false\nfp16: false\nbfloat16: true\n";
  writer.refuse("precision", "axolotl's keys have only bf16, with or without autocast");
}

/// loaders/model.py: _configure_embedding_dtypes, which axolotl's import has, too (tools/axolotl_defaults.cpp).
void mark_ends(ExportWriter& writer) {
  if (is_sharded(writer) || !writer.is("method", "full") || writer.is("attention", "flash-attn")) return;
  writer.mark("storage_dtype",
              "axolotl keeps norms, embeddings and the output layer in fp32 without FSDP or --attention flash-attn");
}

std::string fsdp_lines(ExportWriter& writer) {
  if (!is_sharded(writer)) {
    if (!writer.is("offload", "none")) writer.mark("offload", "nothing is offloaded without FSDP");
    return "";
  }
  const Sharding& sharding = sharding_named(writer.plan().job.sharding);
  const bool offloads = writer.is("offload", "params");
  if (!offloads && !writer.is("offload", "none")) writer.mark("offload", "FSDP offloads all or nothing");
  std::string text = fmt::format(
      "fsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  offload_params: {}\n"
      "  reshard_after_forward: {}\n  cpu_ram_efficient_loading: {}\n  state_dict_type: SHARDED_STATE_DICT\n",
      offloads, is_resharded(writer), !writer.is("method", "qlora"));  // which axolotl refuses of 4 bits
  if (sharding.hybrid) {
    const Mesh& mesh = writer.plan().job.mesh;
    text += fmt::format("dp_replicate_size: {}\ndp_shard_size: {}\n", mesh.replicate, mesh.shard);
  }
  return text;
}

/// Without it axolotl's DDP never looks, while the Trainer's does where nothing else is said.
std::string ddp_line(const ExportWriter& writer) {
  const Job& job = writer.plan().job;
  if (is_sharded(writer) || writer.plan().cluster.cards() == 1 || !has_trainer(job)) return "";
  return fmt::format("ddp_find_unused_parameters: {}\n", finds_unused_parameters(job));
}

std::string adapter_lines(ExportWriter& writer) {
  if (writer.is("method", "full")) return "";
  const bool is_quantized = !writer.value("quantization").empty();
  std::string text = fmt::format("adapter: {}\n", writer.is("method", "qlora") ? "qlora" : "lora");
  if (is_quantized) text += bits_lines(writer, "");
  text += fmt::format("lora_r: {}\nlora_alpha: {}\n", writer.value("lora_rank"), writer.value("lora_alpha"));
  const std::string dropout = writer.value("lora_dropout");
  text += fmt::format("lora_dropout: {}\n", dropout.empty() ? "0.0" : yaml_number(dropout));
  if (writer.is("rslora", "on")) text += "peft_use_rslora: true\n";
  if (writer.is("dora", "on")) text += "peft_use_dora: true\n";
  // Without a word of them axolotl switches its own kernels on.
  for (const AxolotlPart& part : axolotl_parts()) {
    text += fmt::format("lora_{}_kernel: {}\n", part.name, writer.plan().job.axolotl.*part.value);
  }
  text += "lora_embedding_kernel: false\n";
  const auto& targets = writer.plan().job.lora.targets;
  return text + (targets.empty() ? "lora_target_linear: true\n"
                                 : fmt::format("lora_target_modules: [{}]\n", yaml_texts(targets)));
}

/// Parts that aren't named are off.
std::string kernel_lines(const ExportWriter& writer) {
  const Job& job = writer.plan().job;
  if (job.kernels == KernelSource::libtorch) return "";
  if (job.kernels != KernelSource::liger) writer.refuse("kernels", "there is no such choice");
  const LigerParts& parts = job.liger;
  if (parts.swiglu && parts.geglu && *parts.swiglu != *parts.geglu) {
    writer.refuse("kernels", "axolotl has one key for swiglu and geglu");
  }
  const bool is_gated = parts.swiglu.value_or(parts.geglu.value_or(true));  // a model has one of both
  const bool is_granite = writer.plan().spec.model_type == "granite";
  return fmt::format(
      "plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_rope: {}\nliger_rms_norm: {}\n"
      "liger_glu_activation: {}\nliger_cross_entropy: {}\nliger_fused_linear_cross_entropy: {}\n",
      parts.rope.value_or(true), parts.rms_norm.value_or(true), is_gated, parts.cross_entropy.value_or(is_granite),
      parts.fused_linear_cross_entropy.value_or(!is_granite));
}

void write(ExportWriter& writer) {
  if (writer.is("allocator", "native")) {
    writer.mark("allocator", "axolotl sets expandable_segments:True itself, unless PYTORCH_ALLOC_CONF is set");
  }
  mark_ends(writer);
  std::string text = fmt::format("base_model: {}\n", yaml_text(writer.model()));
  text += precision_lines(writer) + adapter_lines(writer);
  text += fmt::format("sequence_len: {}\nmicro_batch_size: {}\n", writer.value("seq_len"), writer.value("micro_batch"));
  if (writer.plan().job.packs_documents) text += "sample_packing: true\n";
  text += fmt::format("gradient_accumulation_steps: {}\n", writer.value("grad_accum"));
  text += fmt::format("gradient_checkpointing: {}\n", hf_checkpointing(writer));
  if (!writer.is("checkpointing", "none")) {
    text +=
        fmt::format("gradient_checkpointing_kwargs:\n  use_reentrant: {}\n", writer.is("reentrant_checkpoints", "on"));
  }
  text += fmt::format("attn_implementation: {}\noptimizer: {}\n", hf_attention(writer), hf_optimizer(writer));
  text += fsdp_lines(writer) + ddp_line(writer) + kernel_lines(writer) + hf_clipping_line(writer);
  const std::string rest = "# Add datasets, learning_rate, lr_scheduler and num_epochs.\noutput_dir: output\n";
  writer.add_file("axolotl.yaml", writer.comments() + rest + text);
  const Cluster& cluster = writer.plan().cluster;
  writer.set_command(fmt::format("axolotl train axolotl.yaml --num-processes {}{}", cluster.cards(),
                                 cluster.nodes > 1 ? fmt::format(" --num-machines {}", cluster.nodes) : ""));
}

constexpr ExportTool kTool{"axolotl", kFields, write};

}  // namespace

const ExportTool& axolotl_export() { return kTool; }

}  // namespace vramfit
