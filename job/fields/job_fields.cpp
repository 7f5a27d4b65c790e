#include "job/fields/job_fields.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/shell_quoted.h"
#include "base/text/suggest.h"
#include "job/fields/bucket_text.h"
#include "job/fields/grpo_text.h"
#include "job/fields/job_field_names.h"
#include "job/fields/job_field_text.h"
#include "job/fields/job_field_words.h"
#include "job/fields/kernels_text.h"
#include "job/fields/runtime_text.h"
#include "job/fields/trained_dtype.h"
#include "job/fields/trainer_text.h"
#include "job/fields/zero_text.h"
#include "job/loss/default_loss.h"
#include "job/optimizers/optimizers.h"

namespace vramfit {
namespace {

template <auto Member, const auto& Table>
std::string get_choice(const Job& job) {
  return name_in(Table, job.*Member);
}
template <auto Member, const auto& Table>
void set_choice(Job& job, std::string_view value) {
  job.*Member = named(Table, value);
}

template <Dtype Precision::*Member>
std::string get_dtype(const Job& job) {
  const Dtype dtype = job.precision.*Member;
  return dtype == kUnsetDtype ? "" : std::string(dtype_name(dtype));
}
template <Dtype Precision::*Member>
void set_dtype(Job& job, std::string_view value) {
  job.precision.*Member = trained_dtype(value);
}

template <bool Job::*Member>
std::string get_toggle(const Job& job) {
  return job.*Member ? "on" : "off";
}
template <bool Job::*Member>
void set_toggle(Job& job, std::string_view value) {
  if (value != "on" && value != "off") unknown_value(value, {"on", "off"});
  job.*Member = value == "on";
}

template <std::int64_t Job::*Member>
std::string get_count(const Job& job) {
  return job.*Member == 0 ? "" : fmt::to_string(job.*Member);
}
template <std::int64_t Job::*Member, std::int64_t Most = kMostCount>
void set_count(Job& job, std::string_view value) {
  job.*Member = whole_number(value, 1, Most);
}
// A product of three counts, which has to be readable again.
constexpr std::int64_t kMostGlobalBatch = std::numeric_limits<std::int64_t>::max();

constexpr std::array kJobFields{
    JobField{"runtime", FieldForm::text, kRuntimeValues,
             "Engine that runs the training step; where it is not modelled yet, rehearse a script. pytorch-ddp is "
             "pytorch with --sharding no-shard. Sets the defaults of --allocator, --prefetch, --wrap-embeddings and "
             "--bucket-bytes. Default: vramfit",
             get_choice<&Job::runtime, kRuntimes>, set_runtime, FieldGroup::software},
    JobField{"modeling", FieldForm::text,
             "vramfit|torchtitan|torchtitan-0.2|transformers|trl|trl-dpo|trl-reward|trl-grpo|accelerate|torchtune",
             "Whose model code runs: vramfit with --runtime vramfit; with PyTorch's runtimes torchtitan-0.2 (its "
             "release 0.2), torchtitan (as of December 2024), transformers (its Trainer), trl and trl-... (TRL's "
             "trainers), accelerate (your own training loop) or torchtune. Default: vramfit",
             get_choice<&Job::modeling, kModelings>, set_modeling, FieldGroup::software},
    JobField{"method", FieldForm::text, "full|lora|qlora",
             "What is trained: all weights, or low-rank adapters on frozen weights, which qlora stores in 4 "
             "bits. Default: full",
             get_choice<&Job::method, kMethods>, set_method, FieldGroup::common, HonouredBy::own_runtime,
             AtResume::must_match, InPlan::required, Decides::parameters},
    JobField{"precision", FieldForm::text, "fp32|bf16-mixed|bf16-pure|fp16-mixed|fp8",
             "Mixed-precision recipe; sets the six dtypes that the precision flags set one by one. Default: bf16-mixed "
             "on GPUs (fp16-mixed below compute capability 8.0), fp32 on CPU ranks",
             get_precision, set_precision, FieldGroup::common, HonouredBy::own_runtime, AtResume::in_part},
    JobField{"storage_dtype", FieldForm::text, "fp32|bf16|fp16",
             "Dtype of parameter shards (the master weights), and of gradients unless --gradient-dtype is given. "
             "Default: set by --precision",
             get_dtype<&Precision::storage>, set_dtype<&Precision::storage>, FieldGroup::precision,
             HonouredBy::own_runtime, AtResume::must_match},
    JobField{"compute_dtype", FieldForm::text, "fp32|bf16|fp16",
             "Dtype of gathered parameters and activations. Default: set by --precision",
             get_dtype<&Precision::compute>, set_dtype<&Precision::compute>, FieldGroup::precision,
             HonouredBy::own_runtime, AtResume::in_part},
    JobField{"reduce_dtype", FieldForm::text, "fp32|bf16|fp16",
             "Dtype in which gradients are reduced and accumulated. Default: set by --precision (transformers with "
             "FSDP2 or DeepSpeed: as --compute-dtype)",
             get_dtype<&Precision::reduce>, set_dtype<&Precision::reduce>, FieldGroup::precision,
             HonouredBy::own_runtime, AtResume::must_match},
    JobField{"buffer_dtype", FieldForm::text, "fp32|bf16|fp16",
             "Dtype of model buffers such as rotary tables. Default: set by --precision", get_dtype<&Precision::buffer>,
             set_dtype<&Precision::buffer>, FieldGroup::precision, HonouredBy::own_runtime, AtResume::must_match},
    JobField{"output_dtype", FieldForm::text, "fp32|bf16|fp16",
             "Dtype of the model's output (logits): that of --compute-dtype, or fp32, which costs nothing more because "
             "the loss reads logits as fp32 block by block. Default: set by --precision",
             get_dtype<&Precision::output>, set_dtype<&Precision::output>, FieldGroup::precision,
             HonouredBy::own_runtime, AtResume::must_match},
    JobField{"state_dtype", FieldForm::text, "fp32|bf16|fp16",
             "Dtype of optimizer states (with optimizers other than adamw: as --storage-dtype; fp16: "
             "not modelled, where states are numbers of this dtype). "
             "Default: set by --precision",
             get_dtype<&Precision::state>, set_dtype<&Precision::state>, FieldGroup::precision, HonouredBy::own_runtime,
             AtResume::must_match},
    JobField{"loss_scale", FieldForm::text, "auto|none|N|dynamic[:INIT[:INTERVAL]]",
             "Loss scaling: a fixed factor, or dynamic from INIT, doubled after INTERVAL good steps. Default: auto "
             "(dynamic:65536:2000 when something is computed or added up in fp16, else none)",
             get_loss_scale, set_loss_scale, FieldGroup::precision, HonouredBy::own_runtime, AtResume::must_match},
    JobField{"mesh", FieldForm::text, "replicate=R,shard=S",
             "Device mesh: replicas x shards. Default: all GPUs, divided as --sharding does", get_mesh, set_mesh,
             FieldGroup::sharding},
    JobField{"sharding", FieldForm::text,
             "no-shard|shard-optimizer|shard-grad-op|full-shard|hybrid-shard|hybrid-shard-zero2",
             "What is sharded across ranks: nothing (DDP), optimizer states (shard-optimizer, ZeRO-1; only modelled "
             "with --stack deepspeed), or parameters, gradients and optimizer states, regathered for backward "
             "(full-shard, ZeRO-3) or not (shard-grad-op, ZeRO-2); hybrid: sharded within a node, replicated across "
             "nodes. Default: full-shard",
             get_sharding, set_sharding, FieldGroup::sharding},
    JobField{"reshard", FieldForm::text, "default|last-kept|always|never|N",
             "Which units free their gathered parameters after forward (FSDP2's reshard_after_forward); N: reshard to "
             "groups of N ranks. Default: default (all but the root unit)",
             get_reshard, set_reshard, FieldGroup::sharding},
    JobField{"wrap", FieldForm::text, "layer|layers:K|size:N|none|pattern:GLOB,...",
             "FSDP units: one per layer, one per K consecutive layers, modules of at least N parameters, the whole "
             "model, or modules by name. Default: layer",
             get_wrap, set_wrap, FieldGroup::sharding, HonouredBy::own_runtime},
    JobField{"wrap_embeddings", FieldForm::toggle, "on|off",
             "Make the embeddings and the output head separate FSDP units. With --stack transformers, off is FSDP2 as "
             "axolotl sets it up. Default: on; --modeling torchtitan and --kernels axolotl: off",
             get_toggle<&Job::wrap_embeddings>, set_toggle<&Job::wrap_embeddings>, FieldGroup::sharding,
             HonouredBy::own_runtime},
    JobField{"prefetch", FieldForm::text, "backward=pre|post|none,forward=K,limit=N",
             "All-gathers issued ahead: in backward before (pre) or after (post) the current unit's gradients are "
             "computed, in forward K units ahead, at most N in flight (0: no limit). Default: "
             "backward=post,forward=1,limit=0",
             get_prefetch, set_prefetch, FieldGroup::sharding, HonouredBy::own_runtime},
    JobField{"reduce_finish", FieldForm::text, "early|end",
             "When a reduced gradient is added to its shard: as soon as it has arrived, or at the end of backward. "
             "Default: early",
             get_choice<&Job::reduce_finish, kFinishes>, set_choice<&Job::reduce_finish, kFinishes>,
             FieldGroup::sharding, HonouredBy::own_runtime},
    JobField{"accumulate", FieldForm::text, "sharded|unsharded",
             "Gradient accumulation: reduce after every micro-batch, or keep full gradients and reduce once per step "
             "(FSDP's no_sync). Default: sharded",
             get_choice<&Job::accumulate, kAccumulates>, set_choice<&Job::accumulate, kAccumulates>,
             FieldGroup::sharding, HonouredBy::own_runtime},
    JobField{"bucket_bytes", FieldForm::integer, "N|auto",
             "Bucket size of the gradient all-reduce across replicas, in bytes. With DeepSpeed: 2 bytes for each "
             "number of reduce_bucket_size, which auto sets to the hidden size squared. Default: 26214400 (25 MiB); "
             "--runtime deepspeed: 1000000000",
             get_bucket, set_bucket, FieldGroup::sharding, HonouredBy::own_runtime},
    JobField{"overlap_comm", FieldForm::toggle, "on|off",
             "DeepSpeed: reduce gradients on a separate stream (overlap_comm). Default: on with ZeRO-3, off otherwise",
             get_overlap, set_overlap, FieldGroup::sharding, HonouredBy::own_runtime, AtResume::may_differ,
             InPlan::optional},
    JobField{"find_unused_parameters", FieldForm::toggle, "on|off", kFindUnusedHelp, get_find_unused, set_find_unused,
             FieldGroup::sharding, HonouredBy::own_runtime, AtResume::may_differ, InPlan::optional},
    JobField{"zero3_sizes", FieldForm::text, "default|auto|KEY=N,...", kZero3SizesHelp, get_zero3_sizes,
             set_zero3_sizes, FieldGroup::sharding, HonouredBy::own_runtime, AtResume::may_differ, InPlan::optional},
    JobField{"grpo", FieldForm::text, "default|reference|KEY=N,...", kGrpoHelp, get_grpo, set_grpo, FieldGroup::memory,
             HonouredBy::own_runtime, AtResume::may_differ, InPlan::optional},
    JobField{"reshard_head", FieldForm::toggle, "on|off",
             "Free the output head's gathered weights while the loss is computed. Default: off",
             get_toggle<&Job::reshard_head>, set_toggle<&Job::reshard_head>, FieldGroup::sharding,
             HonouredBy::own_runtime},
    JobField{"deterministic", FieldForm::toggle, "on|off",
             "Deterministic kernels only; kernels for CPU ranks are always deterministic. Default: off",
             get_toggle<&Job::deterministic>, set_toggle<&Job::deterministic>, FieldGroup::software,
             HonouredBy::own_runtime},
    JobField{"load", FieldForm::text, "each|rank0",
             "Who reads the initial weights: each rank its own shard, or rank 0 for all ranks. Default: each",
             get_choice<&Job::load, kLoads>, set_choice<&Job::load, kLoads>, FieldGroup::sharding,
             HonouredBy::own_runtime},
    JobField{"checkpointing", FieldForm::text, "none|full|every:N|selective|selective:KIND,...|budget:N%",
             "Activation checkpointing: of no layer, of all layers (full) or of every Nth; selective: recompute all "
             "but selected ops (attention and every other matrix product, or those named, as in "
             "selective:attention,linear/3, with KIND as \"vramfit program\" shows it); budget: recompute enough to "
             "keep at most N % of what layers would keep. Default: none",
             get_checkpointing, set_checkpointing, FieldGroup::memory},
    JobField{"reentrant_checkpoints", FieldForm::toggle, "on|off", kReentrantCheckpointsHelp,
             get_toggle<&Job::reentrant_checkpoints>, set_toggle<&Job::reentrant_checkpoints>, FieldGroup::memory,
             HonouredBy::own_runtime, AtResume::may_differ, InPlan::optional},
    JobField{"packing", FieldForm::text, "none|bfd", kPackingHelp, get_packing, set_packing, FieldGroup::memory,
             HonouredBy::own_runtime, AtResume::may_differ, InPlan::optional},
    JobField{
        "offload", FieldForm::list,
        "none|params|params:pageable|optimizer|optimizer:pageable|optimizer+gradients|activations|activations:every:N",
        "What is kept in host memory: optimizer states; these and gradients; or (params) these and the parameters. "
        "activations, alone or with one of those: what layers keep from forward to backward, of all layers or every "
        "Nth. pageable: not pinned, as with DeepSpeed's pin_memory off (docs/offload.md). Default: none",
        get_offload, set_offload, FieldGroup::memory, HonouredBy::every_runtime, AtResume::may_differ,
        InPlan::optional},
    JobField{"optimizer", FieldForm::text, kOptimizerValues,
             "Optimizer and its implementation (docs/optimizers.md says which runtime has which). Default: adamw:fused",
             get_optimizer, set_optimizer, FieldGroup::common, HonouredBy::every_runtime, AtResume::in_part},
    JobField{"optimizer_in_backward", FieldForm::toggle, "on|off",
             "Update each unit within backward, as soon as its gradients are final, and free them at once. Needs one "
             "micro-batch per step and no gradient clipping (docs/optimizers.md). Default: off",
             get_toggle<&Job::optimizer_in_backward>, set_toggle<&Job::optimizer_in_backward>, FieldGroup::memory,
             HonouredBy::own_runtime, AtResume::may_differ, InPlan::optional},
    JobField{"loss", FieldForm::text, "full|chunked:N|chunked-forward:N",
             "Cross entropy over the full logits, or output head and loss computed in N chunks of the tokens: during "
             "backward (chunked), or during forward together with their gradients (chunked-forward). Default: on GPUs "
             "chunks of 1024 tokens if they need less memory, otherwise full",
             get_loss, set_loss, FieldGroup::memory, HonouredBy::own_runtime},
    JobField{"label_smoothing", FieldForm::text, "X",
             "Share of the target probability that is spread evenly over the vocabulary, 0 to 1. Default: 0",
             get_label_smoothing, set_label_smoothing, FieldGroup::memory, HonouredBy::own_runtime,
             AtResume::must_match, InPlan::optional},
    JobField{"z_loss", FieldForm::text, "X",
             "Add X times the square of the logits' log-sum-exp to the loss of each token (PaLM: 1e-4). Default: 0",
             get_z_loss, set_z_loss, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional},
    JobField{"ignore_index", FieldForm::text, "ID",
             "Token id that doesn't count as a label, such as the padding token's. Default: -100 (no token id; "
             "positions without a label never count)",
             get_ignore_index, set_ignore_index, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional},
    JobField{"attention", FieldForm::text, "auto|flash|efficient|cudnn|math|flash-attn",
             "Attention kernel. cudnn has rules with PyTorch's runtimes, except with --modeling torchtitan. With "
             "transformers' and TRL's trainers and accelerate, math is transformers' eager attention, and flash-attn "
             "the package of that name (flash_attention_2). Default: auto, which is what PyTorch picks",
             get_choice<&Job::attention, kAttentions>, set_choice<&Job::attention, kAttentions>, FieldGroup::memory},
    JobField{"compile", FieldForm::toggle, "on|off",
             "Compile the model and its loss with torch.compile (PyTorch's runtimes). The speed is predicted, the "
             "memory is not modelled (docs/time-model.md). Default: off; --runtime vramfit has fused kernels anyway",
             get_toggle<&Job::compile>, set_toggle<&Job::compile>, FieldGroup::software, HonouredBy::every_runtime,
             AtResume::may_differ, InPlan::optional},
    JobField{"kernels", FieldForm::text, kKernelValues, kKernelsHelp, get_kernels, set_kernels, FieldGroup::software,
             HonouredBy::own_runtime, AtResume::may_differ, InPlan::optional},
    JobField{"allocator", FieldForm::text, "native|expandable|gradients-first|arena|KEY=VALUE,...",
             "Settings of PyTorch's CUDA caching allocator, as in PYTORCH_ALLOC_CONF; CPU ranks have no such "
             "allocator. gradients-first: expandable, and the gradients of a layer that is recomputed are allocated "
             "before that, which leaves fewer gaps in most jobs; arena: one block, with offsets computed beforehand; "
             "both with runtime vramfit only, on CPU ranks too. "
             "Default: expandable; PyTorch runtimes: native",
             get_allocator, set_allocator, FieldGroup::memory},
    JobField{"freeze", FieldForm::list, "none|PATTERN,...",
             "Parameters that are not trained: globs over their names, layers:FIRST-LAST, embeddings, head; or none. "
             "Default: none; with --method lora or qlora everything except the adapters, which are always trained",
             get_freeze, set_freeze, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional, Decides::parameters},
    JobField{"master_dtype", FieldForm::text, "fp16",
             "How the layers' trained matrices are stored: fp16 with a scale for each matrix. Default: all parameters "
             "as --storage-dtype",
             get_master_dtype, set_master_dtype, FieldGroup::precision, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional, Decides::parameters},
    JobField{
        "gradient_dtype", FieldForm::text, "fp32|bf16|fp16|fp8|fp8-sent",
        "Dtype in which gradients add up and wait for the update. fp8: those of the layers' trained matrices as e4m3 "
        "with a scale for each; fp8-sent: they are also sent as e4m3 to the rank that keeps them. Default: "
        "--storage-dtype",
        get_gradient_dtype, set_gradient_dtype, FieldGroup::precision, HonouredBy::own_runtime, AtResume::in_part,
        InPlan::optional, Decides::parameters},
    JobField{
        "frozen_dtype", FieldForm::text, "fp32|bf16|fp16",
        "Dtype of frozen parameters' shards, which are then stored separately from trainable ones. Default: "
        "--storage-dtype; with --method lora or qlora: --compute-dtype, but fp32 with TRL's trainers (except LoRA with "
        "DeepSpeed), and for QLoRA with --stack transformers and accelerate",
        get_frozen_dtype, set_frozen_dtype, FieldGroup::precision, HonouredBy::own_runtime, AtResume::must_match,
        InPlan::optional, Decides::parameters},
    JobField{"quantization", FieldForm::text, "none|nf4|nf4-double|int8|fp8",
             "Store the layers' frozen matrices as codes of 4 or 8 bits with scales; they are dequantized to the "
             "compute dtype while their unit is used. fp8 also works for trained matrices if --offload optimizer keeps "
             "their masters in host memory. Default: none",
             get_quantization, set_quantization, FieldGroup::precision, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional, Decides::parameters},
    JobField{"gradient_mask", FieldForm::text, "none|keep:P|file:PATH",
             "Child-tuning: keep each gradient element with probability P, drawn anew every step, or apply masks from "
             "a safetensors file. Default: none",
             get_gradient_mask, set_gradient_mask, FieldGroup::memory, HonouredBy::own_runtime, AtResume::in_part},
    JobField{"lora_rank", FieldForm::integer, "N", "Rank of the adapters, with --method lora or qlora. Default: 8",
             get_lora_rank, set_lora_rank, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional, Decides::parameters},
    JobField{"lora_alpha", FieldForm::text, "X",
             "Adapters' output is multiplied by alpha / rank, or with --rslora by alpha / sqrt(rank). Default: 8",
             get_lora_alpha, set_lora_alpha, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional},
    JobField{"lora_dropout", FieldForm::text, "P",
             "Probability that an element of an adapter's input is dropped; drawn anew every step. Default: 0",
             get_lora_dropout, set_lora_dropout, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional},
    JobField{"lora_targets", FieldForm::text, "all-linear|GLOB,...",
             "Linear layers that get adapters: all but the output layer, or globs over names of modules or their ends "
             "(q_proj, layers.0.*). Default: all-linear",
             get_lora_targets, set_lora_targets, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional, Decides::parameters},
    JobField{"rslora", FieldForm::text, "on|off", "Scale adapters by alpha / sqrt(rank) (rsLoRA). Default: off",
             get_rslora, set_rslora, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match,
             InPlan::optional},
    JobField{
        "dora", FieldForm::text, "on|off",
        "Train the magnitude of each row of an adapted matrix, and its direction with the adapter (DoRA). Default: off",
        get_dora, set_dora, FieldGroup::memory, HonouredBy::own_runtime, AtResume::must_match, InPlan::optional,
        Decides::parameters},
    JobField{"seq_len", FieldForm::integer, "N",
             "Sequence length in tokens. Default: min(max_position_embeddings, 4096)", get_count<&Job::sequence>,
             set_count<&Job::sequence>, FieldGroup::common, HonouredBy::every_runtime, AtResume::must_match},
    JobField{"rotary_positions", FieldForm::integer, "N",
             "torchtune: max_seq_len, for which the model's builder makes its tables. Default: that of the builder "
             "named after the model, else --seq-len",
             get_count<&Job::rotary_positions>, set_count<&Job::rotary_positions>, FieldGroup::memory,
             HonouredBy::own_runtime, AtResume::may_differ, InPlan::optional},
    JobField{"micro_batch", FieldForm::integer, "N",
             "Sequences per GPU per forward pass. Default: derived from the other batch flags, else 1",
             get_count<&Job::micro_batch>, set_count<&Job::micro_batch>},
    JobField{"grad_accum", FieldForm::integer, "N",
             "Gradient accumulation steps. Default: derived from the other batch flags, else 1",
             get_count<&Job::accumulation>, set_count<&Job::accumulation>},
    JobField{"global_batch", FieldForm::integer, "N",
             "Sequences per optimizer step: micro-batch x accumulation steps x data-parallel ranks. Default: derived "
             "from the other batch flags",
             get_count<&Job::global_batch>, set_count<&Job::global_batch, kMostGlobalBatch>, FieldGroup::common,
             HonouredBy::every_runtime, AtResume::must_match},
};

}  // namespace

std::span<const JobField> job_fields() { return kJobFields; }

const JobField& job_field_named(std::string_view name) {
  std::string wanted(name);
  std::ranges::replace(wanted, '-', '_');
  const auto* const row = std::ranges::find(kJobFields, wanted, &JobField::name);
  if (row == kJobFields.end()) {
    throw InputError(fmt::format(
        "job field \"{}\": unknown{} (the job flags of \"vramfit help estimate\", without their dashes, are "
        "the fields)",
        printable(name), did_you_mean(wanted, names_of(kJobFields))));
  }
  return *row;
}

void set_job_field(Job& job, const JobField& field, std::string_view value, const std::string& where) {
  if (value.size() > kLongestText) throw InputError(fmt::format("{}: longer than {} bytes", where, kLongestText));
  try {
    field.set(job, as_known_value(field, value));
  } catch (const NotModelled&) {
    throw;
  } catch (const Error& error) {
    throw InputError(fmt::format("{}: {}", where, error.what()));
  }
}

Job unresolved_job() {
  Job job;
  constexpr Dtype unset = kUnsetDtype;
  job.precision = {.name = "",
                   .storage = unset,
                   .compute = unset,
                   .reduce = unset,
                   .buffer = unset,
                   .output = unset,
                   .state = unset};
  job.mesh = {.replicate = 0, .shard = 0};
  job.micro_batch = job.accumulation = 0;
  job.loss = UnsetLoss{};
  return job;
}

std::string flag_of(const JobField& field) {
  std::string flag = "--" + std::string(field.name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string job_as_flags(const Job& job, const Job& base) {
  std::string flags;
  Job reference = base;
  for (const JobField& field : kJobFields) {
    const std::string value = field.get(job);
    if (value.empty() || value == field.get(reference)) continue;
    flags += fmt::format("{}{} {}", flags.empty() ? "" : " ", flag_of(field), shell_quoted(value));
    field.set(reference, value);  // the values that it sets need no flags of their own
  }
  return flags;
}

}  // namespace vramfit
