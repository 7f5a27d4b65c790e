#include <array>

#include <fmt/format.h>

#include "cli/configs/export/export.h"
#include "cli/configs/export/hf_values.h"
#include "job/sharding/sharding.h"

namespace vramfit {
namespace {

constexpr std::array kFields{
    FieldRow{"method", Carried::script, "full"},
    FieldRow{"precision", Carried::written},
    FieldRow{"sharding", Carried::written},
    FieldRow{"wrap", Carried::written},
    FieldRow{"checkpointing", Carried::written},
    FieldRow{"reentrant_checkpoints", Carried::script, "off"},
    FieldRow{"find_unused_parameters", Carried::script, ""},
    FieldRow{"kernels", Carried::script, ""},
    FieldRow{"offload", Carried::written},
    FieldRow{"optimizer", Carried::script},
    FieldRow{"loss", Carried::script},
    FieldRow{"attention", Carried::script},
    FieldRow{"frozen_dtype", Carried::script},
    FieldRow{"quantization", Carried::script},
    FieldRow{"lora_rank", Carried::script},
    FieldRow{"lora_alpha", Carried::script},
    FieldRow{"lora_dropout", Carried::script},
    FieldRow{"lora_targets", Carried::script},
    FieldRow{"rslora", Carried::script},
    FieldRow{"dora", Carried::script},
    FieldRow{"freeze", Carried::script},
    FieldRow{"seq_len", Carried::script},
    FieldRow{"micro_batch", Carried::script},
    FieldRow{"grad_accum", Carried::script},
    FieldRow{"global_batch", Carried::script},
    FieldRow{"deterministic", Carried::script, "off"},
    FieldRow{"optimizer_in_backward", Carried::script, "off"},
};

std::string mixed_precision(ExportWriter& writer) {
  const std::string name = writer.value("precision");
  if (name == "bf16-mixed") return "bf16";
  if (name == "fp16-mixed") return "fp16";
  if (name == "fp8") writer.refuse("precision", "accelerate's FP8 is a different recipe");
  return "'no'";
}

std::string wrap_lines(ExportWriter& writer) {
  const std::string wrap = writer.value("wrap");
  if (wrap == "none") return "  fsdp_auto_wrap_policy: NO_WRAP\n";
  if (wrap.starts_with("size:")) {
    return fmt::format("  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: {}\n", wrap.substr(5));
  }
  if (wrap != "layer") writer.mark("wrap", "layers are wrapped instead");
  return "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
}

std::string fsdp_lines(ExportWriter& writer, bool checkpoints) {
  const Sharding& sharding = sharding_named(writer.plan().job.sharding);
  const bool offloads = writer.is("offload", "params");
  if (!offloads && !writer.is("offload", "none")) writer.mark("offload", "FSDP offloads all or nothing");
  std::string text = "fsdp_config:\n  fsdp_version: 2\n";
  text += fmt::format("  fsdp_reshard_after_forward: {}\n", is_resharded(writer));
  text += wrap_lines(writer);
  text += fmt::format("  fsdp_offload_params: {}\n", offloads);
  if (checkpoints) {
    text += fmt::format("  fsdp_activation_checkpointing: {}\n", writer.is("checkpointing", "full"));
  }
  text += "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n";
  if (sharding.hybrid) {
    const Mesh& mesh = writer.plan().job.mesh;
    text += fmt::format("parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n", mesh.replicate);
    text += fmt::format("  parallelism_config_dp_shard_size: {}\n", mesh.shard);
  }
  return text;
}

void write(ExportWriter& writer) {
  if (writer.is("precision", "bf16-pure")) {
    writer.mark("precision", "load the model with dtype=torch.bfloat16");
    writer.tell_estimate("--precision bf16-pure");
  }
  const bool is_known = writer.is("checkpointing", "none") || writer.is("checkpointing", "full");
  if (!is_known) {
    writer.mark("checkpointing", "only --stack vramfit has it; nothing is checkpointed unless your script does so");
  } else if (!is_sharded(writer) && !writer.is("checkpointing", "none")) {
    writer.leave_to_script("checkpointing");
  }
  if (const std::string storage = storage_of_codes(writer); !storage.empty()) {
    writer.note(fmt::format(
        "--quantization {}: load the model with bnb_4bit_quant_storage=torch.{} and device_map={{\"\": \"cpu\"}}, so "
        "that FSDP2 shards it",
        writer.value("quantization"), storage));
  }
  if (!writer.plan().clip) {
    writer.note("--no-clip: belongs in your script");
    writer.tell_estimate("--no-clip");
  }
  const std::string text = accelerate_yaml(writer, is_known);
  writer.add_file("accelerate.yaml", writer.comments() + text);
  writer.set_command("accelerate launch --config_file accelerate.yaml train.py");
}

constexpr ExportTool kTool{"accelerate", kFields, write};

}  // namespace

std::string accelerate_yaml(ExportWriter& writer, bool checkpoints) {
  const Cluster& cluster = writer.plan().cluster;
  const bool is_alone = cluster.cards() == 1;
  std::string text = "compute_environment: LOCAL_MACHINE\ndebug: false\n";
  text += fmt::format("distributed_type: {}\n", is_alone ? "'NO'" : is_sharded(writer) ? "FSDP" : "MULTI_GPU");
  text += "downcast_bf16: 'no'\n";
  if (is_sharded(writer)) {
    text += fsdp_lines(writer, checkpoints);
  } else if (!writer.is("offload", "none")) {
    writer.mark("offload", "nothing is offloaded without FSDP");
  }
  text += fmt::format("machine_rank: 0\nmain_training_function: main\nmixed_precision: {}\n", mixed_precision(writer));
  text += fmt::format("num_machines: {}\nnum_processes: {}\n", cluster.nodes, cluster.cards());
  return text + "rdzv_backend: static\nsame_network: true\nuse_cpu: false\n";
}

const ExportTool& accelerate_export() { return kTool; }

}  // namespace vramfit
