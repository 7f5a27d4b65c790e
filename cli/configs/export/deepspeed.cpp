#include <array>

#include <fmt/format.h>

#include "base/json/json_writer.h"
#include "cli/configs/export/export.h"
#include "cli/configs/export/hf_values.h"
#include "job/stacks/zero3_auto.h"
#include "program/stages/offload.h"

namespace vramfit {
namespace {

// What is the Trainer's stands in arguments.yaml.
constexpr std::array kFields{
    FieldRow{"method", Carried::script, "full"},
    FieldRow{"precision", Carried::written},
    FieldRow{"sharding", Carried::written},
    FieldRow{"wrap", Carried::marked, "layer", "ZeRO has no units"},
    FieldRow{"checkpointing", Carried::written},
    FieldRow{"reentrant_checkpoints", Carried::written},
    FieldRow{"find_unused_parameters", Carried::implied},
    FieldRow{"kernels", Carried::written},
    FieldRow{"offload", Carried::written},
    FieldRow{"optimizer", Carried::written},
    FieldRow{"loss", Carried::marked, "full", "all logits exist at once"},
    FieldRow{"attention", Carried::script},
    FieldRow{"frozen_dtype", Carried::script},
    FieldRow{"quantization", Carried::script},
    FieldRow{"lora_rank", Carried::script},
    FieldRow{"lora_alpha", Carried::script},
    FieldRow{"lora_dropout", Carried::script},
    FieldRow{"lora_targets", Carried::script},
    FieldRow{"rslora", Carried::script},
    FieldRow{"seq_len", Carried::script},
    FieldRow{"micro_batch", Carried::written},
    FieldRow{"grad_accum", Carried::written},
    FieldRow{"global_batch", Carried::written},
    FieldRow{"bucket_bytes", Carried::written},
    FieldRow{"overlap_comm", Carried::written},
    FieldRow{"zero3_sizes", Carried::written},
    FieldRow{"wrap_embeddings", Carried::marked, "off", "ZeRO has no units"},
};

int stage(const ExportWriter& writer) {
  const std::string sharding = writer.value("sharding");
  if (sharding == "no-shard") return 0;
  if (sharding == "shard-optimizer") return 1;
  if (sharding == "shard-grad-op") return 2;
  if (sharding == "full-shard") return is_resharded(writer) ? 3 : 2;
  writer.refuse("sharding", "ZeRO with replicas is a different method (MiCS, hpZ)");
}

void write_offload(JsonWriter& json, ExportWriter& writer) {
  const Job& job = writer.plan().job;
  if (job.offload.empty()) return;
  const Offload offload = offload_of(job);
  if (!offload.states || offload.activations || writer.is("offload", "optimizer+gradients")) {
    writer.mark("offload", "optimizer states are offloaded instead");
  }
  const auto write = [&](const char* key, bool is_pinned) {
    json.key(key).begin_object().member("device", "cpu").member("pin_memory", is_pinned).end_object();
  };
  write("offload_optimizer", offload.pins_states);
  if (offload.parameters) write("offload_param", offload.pins_parameters);
}

/// In numbers of 2 bytes, as gradients in half precision have. Another runtime's buckets are other ones.
void write_bucket(JsonWriter& json, ExportWriter& writer) {
  const Job& job = writer.plan().job;
  if (job.runtime != Runtime::deepspeed) {
    if (job.bucket_bytes != Job{}.bucket_bytes) writer.mark("bucket_bytes", "ZeRO's buckets aren't those of replicas");
    return;
  }
  if (job.bucket_bytes == kDeepSpeedBucketBytes) return;
  if (stage(writer) == 0 || dtype_bytes(job.precision.compute).n != 2) {
    writer.mark("bucket_bytes", "its buckets are ZeRO's, of gradients in half precision");
    return;
  }
  if (job.bucket_bytes % 2 != 0) writer.refuse("bucket_bytes", "its buckets hold numbers of 2 bytes");
  json.member("reduce_bucket_size", job.bucket_bytes / 2);
}

void write_sizes(JsonWriter& json, const ExportWriter& writer) {
  const Zero3Sizes& sizes = writer.plan().job.zero3_sizes;
  const Zero3Sizes usual;
  const std::int64_t hidden = writer.plan().spec.hidden_size;
  // DPOTrainer's reference model has DeepSpeed's defaults of what is auto.
  const bool has_auto = writer.plan().job.modeling == Modeling::trl_dpo;
  const auto write = [&](const char* key, std::int64_t Zero3Sizes::*size, std::int64_t of_auto = 0) {
    if (has_auto && of_auto != 0 && sizes.*size == of_auto) {
      json.member(key, "auto");
    } else if (sizes.*size != usual.*size) {
      json.member(key, sizes.*size);
    }
  };
  write("stage3_prefetch_bucket_size", &Zero3Sizes::prefetch_bucket_size, auto_prefetch_bucket_size(hidden));
  write("stage3_param_persistence_threshold", &Zero3Sizes::param_persistence_threshold,
        auto_param_persistence_threshold(hidden));
  write("stage3_max_live_parameters", &Zero3Sizes::max_live_parameters);
  write("stage3_max_reuse_distance", &Zero3Sizes::max_reuse_distance);
  write("sub_group_size", &Zero3Sizes::sub_group_size);
}

/// What another stage than the job's has by default is written.
void write_overlap(JsonWriter& json, const ExportWriter& writer) {
  const Job& job = writer.plan().job;
  if (job.runtime != Runtime::deepspeed || overlaps_reductions(job) == (stage(writer) == 3)) return;
  json.member("overlap_comm", overlaps_reductions(job));
}

/// Its figures are those of the Trainer's arguments.
void write_optimizer(JsonWriter& json) {
  json.key("optimizer").begin_object().member("type", "AdamW").key("params").begin_object();
  for (const char* key : {"lr", "betas", "eps", "weight_decay"}) json.member(key, "auto");
  json.end_object().end_object();
}

void require_precision(const ExportWriter& writer) {
  if (writer.is("precision", "bf16-pure") || writer.is("precision", "fp8")) {
    writer.refuse("precision", "DeepSpeed keeps weights in half precision with copies in fp32, or all in fp32");
  }
}

std::string settings(ExportWriter& writer) {
  const Job& job = writer.plan().job;
  JsonWriter json;
  json.begin_object();
  json.member("train_batch_size", job.global_batch).member("train_micro_batch_size_per_gpu", job.micro_batch);
  json.member("gradient_accumulation_steps", job.accumulation)
      .member("gradient_clipping", writer.plan().clip ? 1.0 : 0.0);
  for (const char* key : {"bf16", "fp16"}) {
    json.key(key).begin_object().member("enabled", writer.is("precision", std::string(key) + "-mixed")).end_object();
  }
  json.key("zero_optimization").begin_object().member("stage", stage(writer));
  write_offload(json, writer);
  write_bucket(json, writer);
  write_overlap(json, writer);
  if (stage(writer) == 3) write_sizes(json, writer);
  if (stage(writer) == 3) json.member("stage3_gather_16bit_weights_on_model_save", true);
  json.end_object();
  if (has_deepspeed_optimizer(writer)) write_optimizer(json);
  json.end_object();
  return json.take();
}

void write(ExportWriter& writer) {
  const std::string json = deepspeed_json(writer);
  std::string arguments = "deepspeed: ds_config.json\noutput_dir: output\n";
  arguments += fmt::format("per_device_train_batch_size: {}\n", writer.value("micro_batch"));
  arguments += fmt::format("gradient_accumulation_steps: {}\n", writer.value("grad_accum"));
  arguments += hf_checkpointing_lines(writer) + hf_kernel_lines(writer) + hf_clipping_line(writer);
  arguments +=
      fmt::format("bf16: {}\nfp16: {}\n", writer.is("precision", "bf16-mixed"), writer.is("precision", "fp16-mixed"));
  if (!has_deepspeed_optimizer(writer)) arguments += fmt::format("optim: {}\n", hf_optimizer(writer));
  writer.add_file("ds_config.json", json);
  writer.add_file("arguments.yaml", writer.comments() + arguments);
  const Cluster& cluster = writer.plan().cluster;
  writer.set_command(fmt::format("deepspeed --num_gpus {}{} train.py arguments.yaml", cluster.cards_per_node,
                                 cluster.nodes > 1 ? fmt::format(" --num_nodes {}", cluster.nodes) : ""));
}

constexpr ExportTool kTool{"deepspeed", kFields, write};

}  // namespace

bool has_deepspeed_optimizer(const ExportWriter& writer) { return writer.is("optimizer", "adamw:deepspeed"); }

std::string deepspeed_json(ExportWriter& writer) {
  require_precision(writer);
  return settings(writer);
}

const ExportTool& deepspeed_export() { return kTool; }

}  // namespace vramfit
