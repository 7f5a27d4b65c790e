#include <algorithm>
#include <array>
#include <variant>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/configs/export/export.h"
#include "cli/configs/export/hf_values.h"
#include "cli/configs/tools/torchtune_models.h"
#include "job/sharding/sharding.h"

namespace vramfit {
namespace {

constexpr std::array kFields{
    FieldRow{"method", Carried::written},
    FieldRow{"precision", Carried::written},
    FieldRow{"sharding", Carried::written},
    FieldRow{"reshard", Carried::marked, "default|always|never", "it reshards after forward, or never"},
    FieldRow{"wrap", Carried::marked, "layer", "layers are wrapped"},
    FieldRow{"wrap_embeddings", Carried::written},
    FieldRow{"checkpointing", Carried::written},
    FieldRow{"offload", Carried::written},
    FieldRow{"optimizer", Carried::written},
    FieldRow{"optimizer_in_backward", Carried::written},
    FieldRow{"loss", Carried::written},
    FieldRow{"attention", Carried::marked, "auto", "PyTorch picks one"},
    FieldRow{"frozen_dtype", Carried::written},
    FieldRow{"quantization", Carried::written},
    FieldRow{"lora_rank", Carried::written},
    FieldRow{"lora_alpha", Carried::written},
    FieldRow{"lora_dropout", Carried::written},
    FieldRow{"lora_targets", Carried::written},
    FieldRow{"dora", Carried::written},
    FieldRow{"seq_len", Carried::written},
    FieldRow{"rotary_positions", Carried::implied},
    FieldRow{"micro_batch", Carried::written},
    FieldRow{"grad_accum", Carried::written},
    FieldRow{"global_batch", Carried::implied},
};

/// As torchtune's own configurations write it.
const char* python_bool(bool value) { return value ? "True" : "False"; }

std::string dtype(ExportWriter& writer) {
  if (writer.is("precision", "bf16-pure")) return "bf16";
  if (writer.is("precision", "fp32")) return "fp32";
  writer.refuse("precision", "torchtune trains in bf16 throughout, or in fp32");
}

std::string optimizer_lines(ExportWriter& writer) {
  if (writer.is("optimizer", "adamw:fused")) return "  _component_: torch.optim.AdamW\n  fused: True\n";
  if (writer.is("optimizer", "adamw:foreach")) return "  _component_: torch.optim.AdamW\n  fused: False\n";
  if (writer.is("optimizer", "adamw-8bit:fused")) return "  _component_: bitsandbytes.optim.AdamW8bit\n";
  if (writer.is("optimizer", "adamw-8bit:paged")) return "  _component_: bitsandbytes.optim.PagedAdamW8bit\n";
  if (writer.is("optimizer", "adamw:paged")) return "  _component_: bitsandbytes.optim.PagedAdamW\n";
  writer.refuse("optimizer", "write its component into the file yourself");
}

std::string loss_component(ExportWriter& writer) {
  const auto* chunked = std::get_if<ChunkedLoss>(&writer.plan().job.loss);
  if (chunked == nullptr) return "torch.nn.CrossEntropyLoss";
  if (chunked->in_forward) writer.mark("loss", "torchtune's chunked loss makes gradients in backward");
  return fmt::format("torchtune.modules.loss.CEWithChunkedOutputLoss\n  num_output_chunks: {}", chunked->chunks);
}

/// q_proj, k_proj, v_proj and output_proj, and all of the MLP or none.
std::string target_lines(ExportWriter& writer) {
  const std::vector<std::string>& given = writer.plan().job.lora.targets;
  const auto has = [&](std::string_view name) {
    return given.empty() || std::ranges::find(given, name) != given.end();
  };
  std::string attention;
  std::size_t known = 0;
  for (const auto& [ours, theirs] :
       {std::pair{"q_proj", "q_proj"}, {"k_proj", "k_proj"}, {"v_proj", "v_proj"}, {"o_proj", "output_proj"}}) {
    if (!has(ours)) continue;
    attention += fmt::format("{}'{}'", attention.empty() ? "" : ", ", theirs);
    ++known;
  }
  const bool mlp = has("gate_proj") && has("up_proj") && has("down_proj");
  if (mlp) known += 3;
  if (!given.empty() && known != given.size()) {
    writer.refuse("lora_targets", "torchtune takes q_proj, k_proj, v_proj, o_proj, and all of the MLP or none of it");
  }
  return fmt::format("  lora_attn_modules: [{}]\n  apply_lora_to_mlp: {}\n", attention, python_bool(mlp));
}

std::string model_lines(ExportWriter& writer) {
  const Job& job = writer.plan().job;
  const TorchtuneBuilder* const builder = torchtune_builder_named(writer.model(), job.rotary_positions);
  if (builder == nullptr) {
    throw InputError(fmt::format("--to torchtune: {}: no builder of torchtune's is known for it", writer.model()));
  }
  if (builder->max_seq_len < job.sequence) {
    writer.refuse("seq_len", fmt::format("torchtune's {} takes {} tokens", builder->name, builder->max_seq_len));
  }
  if (job.rotary_positions > 0 && job.rotary_positions != builder->max_seq_len) {
    writer.mark("rotary_positions", fmt::format("{} has {}", builder->name, builder->max_seq_len));
  }
  const bool is_quantized = writer.is("method", "qlora");
  const bool is_lora = is_quantized || writer.is("method", "lora");
  std::string text = fmt::format("model:\n  _component_: torchtune.models.{}.{}{}\n", builder->package,
                                 is_quantized ? "qlora_"
                                 : is_lora    ? "lora_"
                                              : "",
                                 builder->name);
  if (!is_lora) return text;
  if (is_quantized ? !writer.is("quantization", "nf4-double") : !writer.value("quantization").empty()) {
    writer.refuse("quantization", "torchtune's QLoRA has NF4 with quantized scales: nf4-double");
  }
  if (job.frozen_dtype && *job.frozen_dtype != job.precision.storage) {
    writer.refuse("frozen_dtype", "frozen weights have the dtype of the others");
  }
  const std::string dropout = writer.value("lora_dropout");
  return text + target_lines(writer) + "  apply_lora_to_output: False\n" +
         (writer.is("dora", "on") ? "  use_dora: True\n" : "") +
         fmt::format("  lora_rank: {}\n  lora_alpha: {}\n  lora_dropout: {}\n", writer.value("lora_rank"),
                     writer.value("lora_alpha"), dropout.empty() ? "0.0" : yaml_number(dropout));
}

std::string checkpointing_lines(ExportWriter& writer) {
  const std::string kind = writer.value("checkpointing");
  if (kind.starts_with("every:")) {
    return fmt::format("enable_activation_checkpointing: True\nac_mode: selective\nac_option: {}\n", kind.substr(6));
  }
  if (kind != "none" && kind != "full") writer.mark("checkpointing", "all layers are checkpointed instead");
  std::string text = fmt::format("enable_activation_checkpointing: {}\n", python_bool(kind != "none"));
  if (!writer.is("offload", "activations")) return text;
  if (kind == "none") writer.mark("offload", "torchtune offloads activations only with checkpoints");
  return text + fmt::format("enable_activation_offloading: {}\n", python_bool(kind != "none"));
}

std::string sharding_lines(ExportWriter& writer) {
  const bool keeps_states = writer.is("offload", "none") || writer.is("offload", "activations");
  if (writer.plan().cluster.cards() == 1) {
    if (!keeps_states) writer.mark("offload", "on one GPU torchtune offloads activations only");
    return "";
  }
  const Job& job = writer.plan().job;
  const Sharding& sharding = sharding_named(job.sharding);
  if (!sharding.parameters || job.mesh.replicate > 1) {
    writer.refuse("sharding", "torchtune's recipes shard parameters over all GPUs");
  }
  std::string text = fmt::format("fsdp_reshard_after_forward: {}\n", python_bool(is_resharded(writer)));
  if (writer.is("wrap_embeddings", "on")) text += "custom_sharded_layers: ['tok_embeddings', 'output']\n";
  if (!keeps_states && !writer.is("offload", "params")) {
    writer.mark("offload", "FSDP offloads all or nothing");
  }
  return text + fmt::format("fsdp_cpu_offload: {}\n", python_bool(writer.is("offload", "params")));
}

void write(ExportWriter& writer) {
  std::string text = model_lines(writer);
  text += fmt::format("tokenizer:\n  max_seq_len: {}\n", writer.value("seq_len"));
  text += fmt::format("dtype: {}\n", dtype(writer));
  text += fmt::format("batch_size: {}\ngradient_accumulation_steps: {}\n", writer.value("micro_batch"),
                      writer.value("grad_accum"));
  text += fmt::format("clip_grad_norm: {}\n", writer.plan().clip ? "1.0" : "null");
  text += "optimizer:\n" + optimizer_lines(writer);
  if (writer.is("method", "full")) {
    text += fmt::format("optimizer_in_bwd: {}\n", python_bool(writer.is("optimizer_in_backward", "on")));
  } else if (writer.is("optimizer_in_backward", "on")) {
    writer.refuse("optimizer_in_backward", "torchtune has it only for full fine-tuning");
  }
  text += fmt::format("loss:\n  _component_: {}\n", loss_component(writer));
  text += checkpointing_lines(writer) + sharding_lines(writer) + "device: cuda\ncompile: False\n";
  const std::string head =
      "# Merge this into a configuration of torchtune's for the model (tune cp): tokenizer, checkpointer and\n"
      "# data set are not known here.\n";
  writer.add_file("torchtune.yaml", writer.comments() + head + text);
  const Cluster& cluster = writer.plan().cluster;
  const std::string recipe = writer.is("method", "full") ? "full_finetune" : "lora_finetune";
  writer.set_command(cluster.cards() == 1
                         ? fmt::format("tune run {}_single_device --config torchtune.yaml", recipe)
                         : fmt::format("tune run --nproc_per_node {}{} {}_distributed --config torchtune.yaml",
                                       cluster.cards_per_node,
                                       cluster.nodes > 1 ? fmt::format(" --nnodes {}", cluster.nodes) : "", recipe));
}

constexpr ExportTool kTool{"torchtune", kFields, write};

}  // namespace

const ExportTool& torchtune_export() { return kTool; }

}  // namespace vramfit
