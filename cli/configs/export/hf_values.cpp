#include "cli/configs/export/hf_values.h"

#include <array>

#include <fmt/format.h>

#include "cli/configs/syntax/yaml.h"
#include "job/fields/kernels_text.h"
#include "job/sharding/sharding.h"
#include "job/stacks/stacks.h"
#include "model_specs/dtype.h"

namespace vramfit {
namespace {

struct Name {
  std::string_view ours, theirs;
};
constexpr std::array kOptimizers{
    Name{"adamw:fused", "adamw_torch_fused"},       Name{"adamw:foreach", "adamw_torch"},
    Name{"adamw:paged", "paged_adamw_32bit"},       Name{"adamw-8bit:fused", "adamw_bnb_8bit"},
    Name{"adamw-8bit:paged", "paged_adamw_8bit"},   Name{"adafactor:fused", "adafactor"},
    Name{"adamw-8bit:torchao", "adamw_torch_8bit"}, Name{"adamw-4bit:torchao", "adamw_torch_4bit"}};
constexpr std::array kAttentions{Name{"auto", "sdpa"}, Name{"flash-attn", "flash_attention_2"}, Name{"math", "eager"}};
constexpr std::array kDtypes{Name{"fp32", "float32"}, Name{"bf16", "bfloat16"}, Name{"fp16", "float16"}};

template <typename Table>
std::string_view theirs(const Table& table, const std::string& ours) {
  for (const Name& name : table) {
    if (name.ours == ours) return name.theirs;
  }
  return "";
}

}  // namespace

/// SGD is torch's, whose momentum transformers leaves at 0 unless told otherwise.
std::string hf_optimizer(const ExportWriter& writer) {
  if (writer.is("optimizer", "sgd:fused")) return "sgd\noptim_args: momentum=0.9";
  const std::string_view name = theirs(kOptimizers, writer.value("optimizer"));
  if (name.empty()) writer.refuse("optimizer", "transformers has no optimizer with these states and updates");
  return std::string(name);
}

std::string hf_attention(ExportWriter& writer) {
  const std::string_view name = theirs(kAttentions, writer.value("attention"));
  if (!name.empty()) return std::string(name);
  writer.mark("attention", "PyTorch picks one");
  return "sdpa";
}

std::string hf_checkpointing(ExportWriter& writer) {
  if (writer.is("checkpointing", "full")) return "true";
  if (!writer.is("checkpointing", "none")) {
    writer.mark("checkpointing", "all layers are checkpointed instead");
    return "true";
  }
  return "false";
}

std::string hf_checkpointing_lines(ExportWriter& writer) {
  std::string text = fmt::format("gradient_checkpointing: {}\n", hf_checkpointing(writer));
  const bool is_checkpointed = !writer.is("checkpointing", "none");
  if (is_checkpointed && writer.is("reentrant_checkpoints", "on")) {
    text += "gradient_checkpointing_kwargs:\n  use_reentrant: true\n";
  }
  const Job& job = writer.plan().job;
  const bool is_ddp = writer.plan().cluster.cards() > 1 && writer.is("sharding", "no-shard");
  const bool has_other_default = is_ddp && !has_trainer(job);  // DDP's own: it doesn't look
  if (!job.find_unused_parameters && !has_other_default) return text;
  return text + fmt::format("ddp_find_unused_parameters: {}\n", finds_unused_parameters(job));
}

std::string loaded_dtype(ExportWriter& writer) {
  const Job& job = writer.plan().job;
  const bool is_mixed = job.precision.name == "bf16-mixed" || job.precision.name == "fp16-mixed";
  if (job.method != Method::full) {
    const Dtype frozen = job.frozen_dtype.value_or(job.precision.compute);
    // TRL makes those over 4 bits bf16 (precision_on).
    const Dtype adapters = is_mixed ? precision_on(job, job.precision.name).storage : job.precision.compute;
    if (job.precision.storage != adapters) writer.refuse("storage_dtype", "adapters have the dtype of the precision");
    if (job.precision.state != adapters) writer.refuse("state_dtype", "states have the adapters' dtype");
    if (!is_mixed && frozen != adapters) writer.refuse("frozen_dtype", "all weights have one dtype without autocast");
    return std::string(dtype_name(frozen));
  }
  if (!is_mixed && job.precision.storage != job.precision.compute) {
    writer.refuse("storage_dtype", "weights have the dtype that is computed in without autocast");
  }
  if (job.precision.name == "fp16-mixed" && job.precision.storage != Dtype::f32) {
    writer.refuse("storage_dtype", "weights under autocast to fp16 are fp32");
  }
  if (job.precision.state != job.precision.storage) writer.refuse("state_dtype", "states have the weights' dtype");
  return std::string(dtype_name(job.precision.storage));
}

std::string hf_precision_lines(ExportWriter& writer) {
  const std::string name = writer.value("precision");
  if (name == "fp8") writer.refuse("precision", "transformers' FP8 is a different recipe");
  const std::string weights = loaded_dtype(writer);
  const bool under_fsdp = writer.plan().cluster.cards() > 1 && sharding_named(writer.plan().job.sharding).parameters;
  if (name == "bf16-mixed" && weights != "fp32" && under_fsdp && writer.is("method", "full")) {
    writer.refuse("storage_dtype", "accelerate converts trained weights to fp32 under FSDP");
  }
  return fmt::format("dtype: {}\nbf16: {}\nfp16: {}\n", theirs(kDtypes, weights), name == "bf16-mixed",
                     name == "fp16-mixed");
}

std::string storage_of_codes(const ExportWriter& writer) {
  const bool has_codes = writer.is("method", "qlora") && writer.value("quantization").starts_with("nf4");
  // DeepSpeed parts codes of whatever dtype, and counts them as numbers of it: bytes are the default.
  if (!has_codes || !is_sharded(writer) || writer.plan().job.runtime == Runtime::deepspeed) return "";
  return std::string(theirs(kDtypes, std::string(dtype_name(writer.plan().job.precision.compute))));
}

std::string bits_lines(ExportWriter& writer, std::string_view nested) {
  const std::string format = writer.value("quantization");
  if (format.empty()) return "";
  if (format == "fp8") writer.refuse("quantization", "bitsandbytes has no FP8; it has int8 and nf4-double");
  if (format != "int8" && !writer.is("method", "qlora")) writer.refuse("quantization", "4 bits are --method qlora");
  if (format == "int8" && writer.is("method", "qlora")) {
    writer.refuse("quantization", "8 bits are --method lora --quantization int8");
  }
  if (format == "int8") return "load_in_8bit: true\n";
  std::string text = "load_in_4bit: true\n";
  if (!nested.empty()) {
    text += fmt::format("{}: {}\n", nested, format == "nf4-double");
    if (const std::string storage = storage_of_codes(writer); !storage.empty()) {
      text += fmt::format("bnb_4bit_quant_storage: {}\n", storage);
      // sft_trainer.py: __init__ sets it to None with several processes.
      writer.note(
          fmt::format("--quantization {}: TRL sets device_map itself, so that each GPU has the whole model in 4 bits "
                      "before it is sharded; the plan's peak is of a script that loads it with device_map={{\"\": "
                      "\"cpu\"}}",
                      format));
    }
  } else if (format != "nf4-double") {
    writer.refuse("quantization", "scales are always quantized, too");
  }
  return text;
}

std::string hf_kernel_lines(ExportWriter& writer) {
  const Job& job = writer.plan().job;
  if (job.axolotl.any()) writer.mark("kernels", "no argument switches axolotl's kernels on, which its own files have");
  if (job.kernels == KernelSource::libtorch) return "";
  if (job.kernels != KernelSource::liger) writer.refuse("kernels", "there is no such choice");
  std::string parts;
  for (const LigerPart& part : liger_parts()) {
    const auto& value = job.liger.*part.value;
    if (value) parts += fmt::format("  {}: {}\n", part.name, *value);
  }
  return "use_liger_kernel: true\n" + (parts.empty() ? "" : "liger_kernel_config:\n" + parts);
}

std::string hf_clipping_line(const ExportWriter& writer) { return writer.plan().clip ? "" : "max_grad_norm: 0.0\n"; }

std::string yaml_number(const std::string& text) {
  const ConfigNode::Kind kind = plain_yaml_scalar(text, 1).kind;
  if (kind == ConfigNode::Kind::integer || kind == ConfigNode::Kind::real) return text;
  const std::size_t exponent = text.find('e');
  if (exponent == std::string::npos || text.find('.') != std::string::npos) return text;
  return text.substr(0, exponent) + ".0" + text.substr(exponent);
}

std::string yaml_texts(const std::vector<std::string>& texts) {
  std::string text;
  for (const std::string& each : texts) text += fmt::format("{}{}", text.empty() ? "" : ", ", yaml_text(each));
  return text;
}

}  // namespace vramfit
