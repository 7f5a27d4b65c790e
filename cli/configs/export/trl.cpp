#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/configs/export/export.h"
#include "cli/configs/export/hf_values.h"

namespace vramfit {
namespace {

constexpr std::array kFields{
    FieldRow{"method", Carried::written},        FieldRow{"precision", Carried::written},
    FieldRow{"storage_dtype", Carried::written}, FieldRow{"state_dtype", Carried::written},
    FieldRow{"sharding", Carried::written},      FieldRow{"wrap", Carried::written},
    FieldRow{"checkpointing", Carried::written}, FieldRow{"offload", Carried::written},
    FieldRow{"optimizer", Carried::written},     FieldRow{"loss", Carried::written},
    FieldRow{"attention", Carried::written},     FieldRow{"frozen_dtype", Carried::written},
    FieldRow{"quantization", Carried::written},  FieldRow{"lora_rank", Carried::written},
    FieldRow{"lora_alpha", Carried::written},    FieldRow{"lora_dropout", Carried::written},
    FieldRow{"lora_targets", Carried::written},  FieldRow{"rslora", Carried::written},
    FieldRow{"seq_len", Carried::written},       FieldRow{"micro_batch", Carried::written},
    FieldRow{"grad_accum", Carried::written},    FieldRow{"global_batch", Carried::implied},
};

std::string adapter_lines(ExportWriter& writer) {
  if (writer.is("method", "full")) return "";
  std::string text = "use_peft: true\n";
  text += fmt::format("lora_r: {}\nlora_alpha: {}\n", writer.value("lora_rank"), writer.value("lora_alpha"));
  const std::string dropout = writer.value("lora_dropout");
  text += fmt::format("lora_dropout: {}\n", dropout.empty() ? "0.0" : yaml_number(dropout));
  const auto& targets = writer.plan().job.lora.targets;
  text += targets.empty() ? "lora_target_modules: all-linear\n"
                          : fmt::format("lora_target_modules: [{}]\n", yaml_texts(targets));
  if (writer.is("rslora", "on")) text += "use_rslora: true\n";
  return text + bits_lines(writer, "use_bnb_nested_quant");
}

std::string loss_line(ExportWriter& writer) {
  if (writer.plan().job.modeling == Modeling::trl_dpo) return "loss_type: sigmoid\nf_divergence_type: reverse_kl\n";
  if (writer.is("loss", "full")) return "loss_type: nll\n";
  writer.mark("loss", "TRL's chunked loss has chunks of its own");
  return "loss_type: chunked_nll\n";
}

void write(ExportWriter& writer) {
  std::string text = fmt::format("model_name_or_path: {}\n", yaml_text(writer.plan().spec.name));
  text += hf_precision_lines(writer);
  text += fmt::format("attn_implementation: {}\n", hf_attention(writer));
  text += fmt::format("max_length: {}\n", writer.value("seq_len"));
  text += fmt::format("per_device_train_batch_size: {}\n", writer.value("micro_batch"));
  text += fmt::format("gradient_accumulation_steps: {}\n", writer.value("grad_accum"));
  text += fmt::format("gradient_checkpointing: {}\n", hf_checkpointing(writer));
  text += fmt::format("optim: {}\n", hf_optimizer(writer));
  text += loss_line(writer) + adapter_lines(writer);
  text += "output_dir: output\n";
  const std::string launcher = accelerate_yaml(writer, false);
  writer.add_file("accelerate.yaml", writer.comments() + launcher);
  const std::string_view trainer = writer.plan().job.modeling == Modeling::trl_dpo ? "dpo" : "sft";
  writer.add_file(fmt::format("{}.yaml", trainer), writer.comments() + "# dataset_name: yours\n" + text);
  writer.set_command(
      fmt::format("trl {0} --config {0}.yaml --accelerate_config accelerate.yaml --dataset_name DATASET", trainer));
}

constexpr ExportTool kTool{"trl", kFields, write};

}  // namespace

const ExportTool& trl_export() { return kTool; }

}  // namespace vramfit
