// torchtitan 0.1 and 0.2 read TOML; newer ones are configured in Python.
#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/configs/export/export.h"
#include "cli/configs/tools/titan_models.h"

namespace vramfit {
namespace {

constexpr std::array kFields{
    FieldRow{"method", Carried::refused, "full", "torchtitan trains all weights"},
    FieldRow{"precision", Carried::written},
    FieldRow{"sharding", Carried::written},
    FieldRow{"mesh", Carried::written},
    FieldRow{"reshard", Carried::written},
    FieldRow{"wrap", Carried::marked, "layer", "layers are wrapped"},
    FieldRow{"wrap_embeddings", Carried::marked, "on", "embeddings and output are separate units"},
    FieldRow{"checkpointing", Carried::written},
    FieldRow{"offload", Carried::written},
    FieldRow{"optimizer", Carried::written},
    FieldRow{"optimizer_in_backward", Carried::written},
    FieldRow{"loss", Carried::marked, "full", "all logits exist at once"},
    FieldRow{"attention", Carried::marked, "auto|cudnn", "torchtitan runs cuDNN's wherever that has a kernel"},
    FieldRow{"frozen_dtype", Carried::refused, "", "torchtitan freezes nothing"},
    FieldRow{"quantization", Carried::refused, "", "torchtitan freezes nothing"},
    FieldRow{"lora_rank", Carried::implied},
    FieldRow{"lora_alpha", Carried::implied},
    FieldRow{"lora_dropout", Carried::implied},
    FieldRow{"lora_targets", Carried::implied},
    FieldRow{"seq_len", Carried::written},
    FieldRow{"micro_batch", Carried::written},
    FieldRow{"grad_accum", Carried::implied},
    FieldRow{"global_batch", Carried::written},
};

std::string precision_lines(ExportWriter& writer) {
  const std::string name = writer.value("precision");
  if (name == "bf16-mixed") return "dtype = \"float32\"\nmixed_precision_param = \"bfloat16\"\n";
  if (name == "bf16-pure") return "dtype = \"bfloat16\"\nmixed_precision_param = \"bfloat16\"\n";
  if (name == "fp32") return "dtype = \"float32\"\nmixed_precision_param = \"float32\"\n";
  writer.refuse("precision", "torchtitan's keys have no such recipe");
}

std::string checkpointing_lines(ExportWriter& writer) {
  const std::string kind = writer.value("checkpointing");
  if (kind == "none" || kind == "full") return fmt::format("mode = \"{}\"\n", kind);
  if (kind == "selective") return "mode = \"selective\"\nselective_ac_option = \"op\"\n";
  if (kind.starts_with("every:")) {
    return fmt::format("mode = \"selective\"\nselective_ac_option = \"{}\"\n", kind.substr(6));
  }
  writer.mark("checkpointing", "torchtitan's own selection of ops instead");
  return "mode = \"selective\"\nselective_ac_option = \"op\"\n";
}

std::string implementation(ExportWriter& writer) {
  if (writer.is("optimizer", "adamw:fused")) return "fused";
  if (writer.is("optimizer", "adamw:foreach")) return "foreach";
  if (writer.is("optimizer", "adamw:loop")) return "for-loop";
  writer.refuse("optimizer", "torchtitan has Adam and AdamW");
}

std::string reshard(ExportWriter& writer) {
  const std::string kind = writer.value("reshard");
  if (writer.is("sharding", "shard-grad-op") || writer.is("sharding", "hybrid-shard-zero2")) return "never";
  if (kind == "default" || kind == "always" || kind == "never") return kind;
  writer.mark("reshard", "torchtitan's default instead");
  return "default";
}

void write(ExportWriter& writer) {
  const Job& job = writer.plan().job;
  const std::string name = writer.model();
  const TitanModel* model = titan_model(name);
  if (model == nullptr) throw InputError(fmt::format("--to torchtitan: {}: none of torchtitan's flavors", name));
  const bool is_sharded = job.sharding != "no-shard";
  const bool offloads = writer.is("offload", "params");
  if (!offloads && !writer.is("offload", "none")) writer.mark("offload", "FSDP offloads all or nothing");
  if (!writer.plan().clip) writer.note("--no-clip: torchtitan clips to its max_norm all the same");
  std::string text = fmt::format("[model]\nname = \"{}\"\nflavor = \"{}\"\n", model->name, model->flavor);
  text += fmt::format("\n[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n", job.micro_batch,
                      job.global_batch, job.sequence);
  text += precision_lines(writer) +
          fmt::format("mixed_precision_reduce = \"float32\"\nenable_cpu_offload = {}\n", offloads);
  text += fmt::format("\n[parallelism]\ndata_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n",
                      job.mesh.replicate, is_sharded ? job.mesh.shard : 1);
  text += fmt::format("fsdp_reshard_after_forward = \"{}\"\n", reshard(writer));
  text += "\n[activation_checkpoint]\n" + checkpointing_lines(writer);
  text += fmt::format("\n[optimizer]\nname = \"AdamW\"\nimplementation = \"{}\"\nearly_step_in_backward = {}\n",
                      implementation(writer), writer.is("optimizer_in_backward", "on"));
  text += "\n[compile]\nenable = false\n";
  writer.add_file("torchtitan.toml", writer.comments() + text);
  const Cluster& cluster = writer.plan().cluster;
  writer.set_command(fmt::format("torchrun --nproc_per_node {}{} -m torchtitan.train --job.config_file torchtitan.toml",
                                 cluster.cards_per_node,
                                 cluster.nodes > 1 ? fmt::format(" --nnodes {}", cluster.nodes) : ""));
}

constexpr ExportTool kTool{"torchtitan", kFields, write};

}  // namespace

const ExportTool& torchtitan_export() { return kTool; }

}  // namespace vramfit
