#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/configs/export/export.h"
#include "cli/configs/export/hf_values.h"

namespace vramfit {
namespace {

constexpr std::array kFields{
    FieldRow{"method", Carried::written},
    FieldRow{"precision", Carried::written},
    FieldRow{"storage_dtype", Carried::written},
    FieldRow{"state_dtype", Carried::written},
    FieldRow{"sharding", Carried::written},
    FieldRow{"wrap", Carried::written},
    FieldRow{"checkpointing", Carried::written},
    FieldRow{"offload", Carried::written},
    FieldRow{"optimizer", Carried::written},
    FieldRow{"loss", Carried::written},
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
    FieldRow{"grpo", Carried::written},
    FieldRow{"packing", Carried::written},
    FieldRow{"reentrant_checkpoints", Carried::written},
    FieldRow{"find_unused_parameters", Carried::implied},
    FieldRow{"kernels", Carried::written},
};

constexpr std::size_t kZeros = 5;
/// With DeepSpeed, its configuration carries what is ZeRO's.
constexpr std::array<FieldRow, kFields.size() + kZeros> fields_with_deepspeed() {
  std::array<FieldRow, kFields.size() + kZeros> fields{
      FieldRow{"bucket_bytes", Carried::written}, FieldRow{"overlap_comm", Carried::written},
      FieldRow{"zero3_sizes", Carried::written}, FieldRow{"wrap", Carried::marked, "layer", "ZeRO has no units"},
      FieldRow{"wrap_embeddings", Carried::marked, "off", "ZeRO has no units"}};
  std::ranges::copy(kFields, fields.begin() + kZeros);
  return fields;
}
constexpr auto kFieldsWithDeepSpeed = fields_with_deepspeed();

/// TRL hands a list of one to PEFT as its text, which PEFT reads as a regular expression over whole names.
std::string target_modules(const ExportWriter& writer) {
  const std::vector<std::string>& targets = writer.plan().job.lora.targets;
  if (targets.empty()) return "all-linear";
  if (targets.size() > 1) return fmt::format("[{}]", yaml_texts(targets));
  if (targets.front() == "lm_head") writer.refuse("lora_targets", "TRL can't train an adapter of the head by itself");
  std::string expression = ".*\\.";
  for (const char c : targets.front()) expression += c == '.' ? "\\." : std::string(1, c);
  return yaml_text(expression);
}

std::string adapter_lines(ExportWriter& writer) {
  if (writer.is("method", "full")) return "";
  std::string text = "use_peft: true\n";
  text += fmt::format("lora_r: {}\nlora_alpha: {}\n", writer.value("lora_rank"), writer.value("lora_alpha"));
  const std::string dropout = writer.value("lora_dropout");
  text += fmt::format("lora_dropout: {}\n", dropout.empty() ? "0.0" : yaml_number(dropout));
  text += fmt::format("lora_target_modules: {}\n", target_modules(writer));
  if (writer.is("rslora", "on")) text += "use_rslora: true\n";
  if (writer.is("dora", "on")) text += "use_dora: true\n";
  return text + bits_lines(writer, "use_bnb_nested_quant");
}

/// TRL wants either steps_per_generation or generation_batch_size; it makes the one of the other. A beta is anything
/// but 0.
std::string grpo_lines(const GrpoChoices& choices) {
  std::string text = fmt::format("loss_type: dapo\nbeta: {}\n", choices.has_reference ? "0.04" : "0.0");
  if (choices.num_iterations > 1) text += fmt::format("num_iterations: {}\n", choices.num_iterations);
  if (choices.steps_per_generation > 0) text += fmt::format("steps_per_generation: {}\n", choices.steps_per_generation);
  return text;
}

std::string loss_line(ExportWriter& writer) {
  const bool is_full = writer.is("loss", "full");
  const Job& job = writer.plan().job;
  if (has_trl(job) && job.modeling != Modeling::trl) {
    if (!is_full) writer.mark("loss", "the trainer computes its loss in its own way");
    if (job.modeling == Modeling::trl_grpo) return grpo_lines(job.grpo);
    return is_classifier(job) ? "lora_task_type: SEQ_CLS\n" : "loss_type: sigmoid\nf_divergence_type: reverse_kl\n";
  }
  if (is_full) return "loss_type: nll\n";
  writer.mark("loss", "TRL's chunked loss has its own chunk sizes");
  return "loss_type: chunked_nll\n";
}

/// Of GRPOTrainer's rows, a prompt has one token; more come on top.
std::string length_lines(ExportWriter& writer) {
  const Job& job = writer.plan().job;
  const std::string length = writer.value("seq_len");
  const std::string_view packing = job.packs_documents ? "packing: true\npacking_strategy: bfd\n" : "";
  if (job.modeling != Modeling::trl_grpo) return fmt::format("max_length: {}\n{}", length, packing);
  return fmt::format("max_completion_length: {}\nnum_generations: {}\n", job.sequence - 1, completions_of_group(job));
}

std::string argument_lines(ExportWriter& writer) {
  std::string text = fmt::format("model_name_or_path: {}\n", yaml_text(writer.model()));
  text += hf_precision_lines(writer);
  text += fmt::format("attn_implementation: {}\n", hf_attention(writer));
  text += length_lines(writer);
  text += fmt::format("per_device_train_batch_size: {}\n", writer.value("micro_batch"));
  text += fmt::format("gradient_accumulation_steps: {}\n", writer.value("grad_accum"));
  text += hf_checkpointing_lines(writer) + hf_kernel_lines(writer);
  if (!has_deepspeed_optimizer(writer)) text += fmt::format("optim: {}\n", hf_optimizer(writer));
  text += loss_line(writer) + adapter_lines(writer) + hf_clipping_line(writer);
  return text + "output_dir: output\n";
}

void add_files(ExportWriter& writer, const std::string& launcher, const std::string& arguments) {
  writer.add_file("accelerate.yaml", writer.comments() + launcher);
  const Modeling modeling = writer.plan().job.modeling;
  const std::string_view trainer = modeling == Modeling::trl_dpo      ? "dpo"
                                   : modeling == Modeling::trl_reward ? "reward"
                                   : modeling == Modeling::trl_grpo   ? "grpo"
                                                                      : "sft";
  writer.add_file(fmt::format("{}.yaml", trainer), writer.comments() + "# dataset_name: yours\n" + arguments);
  writer.set_command(
      fmt::format("trl {0} --config {0}.yaml --accelerate_config accelerate.yaml --dataset_name DATASET{1}", trainer,
                  modeling == Modeling::trl_grpo ? " --reward_funcs REWARDS" : ""));
}

/// trl 1.16, trainer/dpo_trainer.py: __init__ leaves device_map at "auto" under FSDP, and trl's command gives models by
/// name.
void mark_reference(ExportWriter& writer) {
  if (!has_dpo_reference_under_fsdp(writer.plan().job)) return;
  writer.mark("method",
              "trl dpo loads the reference by name, TRL 1.16 then spreads it over all cards under FSDP, and the first "
              "step fails: pass both models as objects in a script");
}

void write(ExportWriter& writer) {
  mark_reference(writer);
  const std::string text = argument_lines(writer);
  add_files(writer, accelerate_yaml(writer, false), text);
}

/// deepspeed/runtime/engine.py: _configure_distributed_model. What is quantized goes back to the dtype that it was
/// loaded in.
void require_frozen_dtype(const ExportWriter& writer) {
  const Job& job = writer.plan().job;
  if (job.method != Method::lora || job.frozen_dtype.value_or(job.precision.compute) == job.precision.compute) return;
  writer.refuse("frozen_dtype", "DeepSpeed converts frozen weights to the dtype that is computed in");
}

void write_with_deepspeed(ExportWriter& writer) {
  require_frozen_dtype(writer);
  const std::string text = argument_lines(writer), json = deepspeed_json(writer);
  writer.add_file("ds_config.json", json);
  const Cluster& cluster = writer.plan().cluster;
  std::string launcher = "compute_environment: LOCAL_MACHINE\ndebug: false\n";
  launcher += "deepspeed_config:\n  deepspeed_config_file: ds_config.json\n";
  if (cluster.nodes > 1) launcher += "  deepspeed_multinode_launcher: standard\n";  // pdsh wants a file of hosts
  if (writer.is("sharding", "full-shard")) launcher += "  zero3_init_flag: true\n";
  launcher += "distributed_type: DEEPSPEED\ndowncast_bf16: 'no'\nmachine_rank: 0\nmain_training_function: main\n";
  launcher += fmt::format("num_machines: {}\nnum_processes: {}\n", cluster.nodes, cluster.cards());
  add_files(writer, launcher + "rdzv_backend: static\nsame_network: true\nuse_cpu: false\n", text);
}

constexpr ExportTool kWithDeepSpeed{"trl", kFieldsWithDeepSpeed, write_with_deepspeed};
constexpr ExportTool kTool{"trl", kFields, write, &kWithDeepSpeed};

}  // namespace

const ExportTool& trl_export() { return kTool; }

}  // namespace vramfit
