#include "program/nearest.h"

#include <array>

#include <fmt/format.h>

#include "job/fields/job_fields.h"

namespace vramfit {

namespace {

/// The first row that is about a field's value and the job holds.
struct Nearest {
  std::string_view field, value;  // value: how it begins
  bool (*is_about)(const Job& job);
  std::string_view what;
};

bool is_any(const Job& /*job*/) { return true; }
bool is_own(const Job& job) { return job.runtime == Runtime::vramfit; }
bool is_other(const Job& job) { return !is_own(job); }
bool is_fsdp1(const Job& job) { return job.runtime == Runtime::pytorch_fsdp1; }
bool has_axolotls(const Job& job) { return job.axolotl.any(); }
bool is_fsdp2(const Job& job) { return job.runtime == Runtime::pytorch_fsdp2; }
bool is_deepspeed(const Job& job) { return job.runtime == Runtime::deepspeed; }
bool is_titan(const Job& job) { return is_torchtitan(job); }
bool is_sharded_titan(const Job& job) { return is_titan(job) && is_fsdp2(job); }
bool is_old_titan_in_16_bits(const Job& job) {
  return job.modeling == Modeling::torchtitan && job.precision.compute != Dtype::f32;
}
bool is_tune(const Job& job) { return job.modeling == Modeling::torchtune; }
bool is_whole_in_trainer(const Job& job) { return job.runtime == Runtime::pytorch && has_trainer(job); }
bool is_of_trainer(const Job& job) { return job.modeling == Modeling::transformers; }
bool is_accelerate(const Job& job) { return job.modeling == Modeling::accelerate; }
bool is_sharded_in_trainer(const Job& job) { return is_fsdp2(job) && has_trainer(job); }

constexpr std::array kNearest{
    Nearest{"modeling", "", is_own, "--stack with the library's name sets its runtime, too"},
    Nearest{"attention", "", is_own, "--attention auto and math are, on CPU ranks"},
    Nearest{"attention", "flash-attn", is_other, "--stack transformers, TRL's, DeepSpeed's and accelerate have it"},
    Nearest{"attention", "", is_old_titan_in_16_bits, "--attention flash is"},
    Nearest{"attention", "", is_other, "--attention auto is"},
    Nearest{"optimizer", "adamw:", uses_accelerate, "--optimizer adamw:fused and adamw:foreach are"},
    Nearest{"optimizer", "", is_sharded_in_trainer,
            "--optimizer adamw is, without offload adamw-8bit:torchao, and with --sharding no-shard adamw-8bit"},
    Nearest{"optimizer", "", is_fsdp2, "--optimizer adamw is; --stack vramfit has others"},
    Nearest{
        "optimizer", "", is_deepspeed,
        "--optimizer adamw is, and without offload adamw-8bit:fused, adamw-8bit:paged, adamw:paged, adafactor and sgd"},
    Nearest{"optimizer", "", is_tune, "--optimizer adamw and adamw-8bit are"},
    Nearest{"optimizer", "", is_accelerate, "--optimizer adamw, adamw-8bit and adafactor are"},
    Nearest{"optimizer", "", is_whole_in_trainer,
            "--optimizer adamw, adamw-8bit and adafactor are; --stack vramfit has others"},
    Nearest{"offload", "activations", is_tune, "--offload activations alone is"},
    Nearest{"offload", "activations", is_other, "--stack vramfit has it; --stack torchtune has --offload activations"},
    Nearest{"offload", "", is_tune, "--offload activations is; --stack transformers has --offload params"},
    Nearest{"offload", "", is_titan, "--stack transformers has --offload params; --stack vramfit has all kinds"},
    Nearest{"offload", "", is_whole_in_trainer,
            "--runtime deepspeed has --offload optimizer; on several GPUs FSDP2 has --offload params"},
    Nearest{"offload", "", is_other, "--stack vramfit has it"},
    Nearest{"quantization", "", uses_accelerate, "--method qlora with nf4 or nf4-double is"},
    Nearest{"quantization", "", is_tune, "--method qlora is, with nf4-double"},
    Nearest{"quantization", "", is_other, "--stack transformers has --method qlora"},
    Nearest{"checkpointing", "", is_titan, "--checkpointing none, full, every:N and selective are"},
    Nearest{"checkpointing", "", is_other, "--checkpointing none and full are; --stack vramfit has it"},
    Nearest{"dora", "", is_deepspeed, "--method lora without it is; --stack transformers has it"},
    Nearest{"dora", "", is_fsdp1, "--runtime pytorch-fsdp2 has it"},
    Nearest{"method", "", is_titan, "--stack transformers has it"},
    Nearest{"precision", "fp8", is_other, "--precision bf16-mixed is; --stack vramfit has it"},
    Nearest{"precision", "", is_sharded_titan, "--precision bf16-mixed is"},
    Nearest{"precision", "", is_titan, "--precision bf16-pure and fp32 are"},
    Nearest{"compute_dtype", "fp32", is_deepspeed, "DeepSpeed has no precision that computes in it; leave it out"},
    Nearest{"compute_dtype", "fp32", is_sharded_titan, "--precision bf16-mixed computes in bf16; leave it out"},
    Nearest{"compute_dtype", "fp32", is_other, "--precision fp32 computes in it"},
    Nearest{"compute_dtype", "fp16", uses_accelerate, "--precision fp16-mixed computes in it"},
    Nearest{"compute_dtype", "bf16", uses_accelerate, "--precision bf16-mixed computes in it"},
    Nearest{"compute_dtype", "", is_other, "the precision says what it computes in; leave it out"},
    Nearest{"storage_dtype", "fp16", is_other, "--precision fp16-mixed is, with fp32 weights"},
    Nearest{"state_dtype", "fp16", is_other, "--state-dtype fp32 is"},
    Nearest{"output_dtype", "", is_other, "leave it out"},
    Nearest{"allocator", "arena", is_other, "--allocator expandable is; --stack vramfit has it"},
    Nearest{"allocator", "", is_other, "--allocator native and expandable are"},
    Nearest{"allocator", "", is_own, "--allocator native, expandable and arena are"},
    Nearest{"kernels", "", has_axolotls, "--stack transformers has them"},
    Nearest{"kernels", "liger", is_any, "--stack transformers, DeepSpeed's and TRL's have them"},
    Nearest{"overlap_comm", "", is_other, "--stack deepspeed has it"},
    Nearest{"zero3_sizes", "", is_other, "--stack deepspeed has them"},
    Nearest{"grpo", "", is_any, "--stack trl-grpo has it"},
    Nearest{"packing", "", is_of_trainer, "--attention flash-attn has it, with kernels for documents"},
    Nearest{"packing", "", is_any, "--stack trl has it, with TRL's SFTTrainer"},
    Nearest{"reentrant_checkpoints", "", is_fsdp1, "--runtime pytorch-fsdp2 has it"},
    Nearest{"reentrant_checkpoints", "", is_any, "--stack transformers has it"},
    Nearest{"find_unused_parameters", "", is_any, "--stack transformers has it with --sharding no-shard"},
    Nearest{"rotary_positions", "", is_any, "--stack torchtune has them; leave it out"},
    Nearest{"grad_accum", "", is_titan, "--grad-accum 1 is; --stack transformers has it"},
    Nearest{"reshard", "", is_other, "--reshard default is; --stack vramfit has others"},
    Nearest{"wrap", "", is_other, "--wrap layer is; --stack vramfit has others"},
    Nearest{"wrap_embeddings", "", is_other, "leave it out"},
    Nearest{"", "", is_other, "--stack vramfit has it"}};

}  // namespace

std::string nearest_text(const Job& job, std::string_view field) {
  const std::string value = job_field_named(field).get(job);
  for (const Nearest& row : kNearest) {
    const bool is_about = (row.field.empty() || row.field == field) && value.starts_with(row.value);
    if (is_about && row.is_about(job)) return fmt::format(" ({})", row.what);
  }
  return "";
}

}  // namespace vramfit
