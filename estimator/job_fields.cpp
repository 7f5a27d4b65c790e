#include "estimator/job_fields.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "estimator/job_field_names.h"
#include "estimator/job_field_text.h"
#include "model_specs/error.h"
#include "model_specs/suggest.h"

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
  const Dtype dtype = parse_dtype(value);
  if (dtype != Dtype::f32 && dtype != Dtype::bf16 && dtype != Dtype::f16) {
    throw InputError(fmt::format("\"{}\" is not a type to train in (known: fp32, bf16, fp16)", printable(value)));
  }
  job.precision.*Member = dtype;
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
template <std::int64_t Job::*Member>
void set_count(Job& job, std::string_view value) {
  job.*Member = whole_number(value, 1, kMostCount);
}

/// A runtime brings its own defaults, as a precision brings its dtypes: PyTorch's allocator and FSDP2's schedule, which
/// gathers one unit ahead in backward alone and holds embeddings and head in the root's unit.
void set_runtime(Job& job, std::string_view value) {
  set_choice<&Job::runtime, kRuntimes>(job, value);
  const bool is_own = job.runtime == Runtime::vramfit;
  const Job defaults;
  job.allocator = is_own ? defaults.allocator : "native";
  job.wrap_embeddings = is_own;
  job.backward_prefetch = is_own ? defaults.backward_prefetch : BackwardPrefetch::pre;
  job.forward_prefetch = is_own ? defaults.forward_prefetch : 0;
}

constexpr std::array kJobFields{
    JobField{"runtime", FieldForm::text, "vramfit|pytorch-fsdp2",
             "Who executes the job; brings its defaults of allocator, prefetch and wrap-embeddings. Default: vramfit",
             get_choice<&Job::runtime, kRuntimes>, set_runtime},
    JobField{"modeling", FieldForm::text, "vramfit|torchtitan|transformers",
             "Whose module code is run. Default: vramfit", get_choice<&Job::modeling, kModelings>,
             set_choice<&Job::modeling, kModelings>},
    JobField{"method", FieldForm::text, "full|lora|qlora", "What is trained. Default: full",
             get_choice<&Job::method, kMethods>, set_choice<&Job::method, kMethods>},
    JobField{"precision", FieldForm::text, "fp32|bf16-mixed|bf16-pure|fp16-mixed|fp8",
             "Sets the six dtypes below. Default: bf16-mixed on GPUs, fp32 on CPU ranks", get_precision, set_precision},
    JobField{"storage_dtype", FieldForm::text, "fp32|bf16|fp16", "Sharded parameters", get_dtype<&Precision::storage>,
             set_dtype<&Precision::storage>},
    JobField{"compute_dtype", FieldForm::text, "fp32|bf16|fp16", "Gathered parameters and activations",
             get_dtype<&Precision::compute>, set_dtype<&Precision::compute>},
    JobField{"reduce_dtype", FieldForm::text, "fp32|bf16|fp16", "Gradient reduction and sharded gradients",
             get_dtype<&Precision::reduce>, set_dtype<&Precision::reduce>},
    JobField{"buffer_dtype", FieldForm::text, "fp32|bf16|fp16", "Buffers such as rotary tables",
             get_dtype<&Precision::buffer>, set_dtype<&Precision::buffer>},
    JobField{"output_dtype", FieldForm::text, "fp32|bf16|fp16", "The model's outputs", get_dtype<&Precision::output>,
             set_dtype<&Precision::output>},
    JobField{"state_dtype", FieldForm::text, "fp32|bf16|fp16", "Optimizer states", get_dtype<&Precision::state>,
             set_dtype<&Precision::state>},
    JobField{"loss_scale", FieldForm::text, "auto|none|N|dynamic[:INIT[:INTERVAL]]",
             "Factor of the loss in backward. Default: auto (dynamic:65536:2000 where fp16 computes, else none)",
             get_loss_scale, set_loss_scale},
    JobField{"mesh", FieldForm::text, "replicate=R,shard=S",
             "Ranks along each axis. Default: by --sharding, over all cards", get_mesh, set_mesh},
    JobField{"sharding", FieldForm::text, "no-shard|shard-grad-op|full-shard|hybrid-shard|hybrid-shard-zero2",
             "What is split over ranks (FSDP's names are read too). Default: full-shard", get_sharding, set_sharding},
    JobField{"reshard", FieldForm::text, "default|last-kept|always|never|N",
             "Which units are released after forward. Default: default", get_reshard, set_reshard},
    JobField{"wrap", FieldForm::text, "layer|size:N|none|pattern:GLOB,...", "What is gathered together. Default: layer",
             get_wrap, set_wrap},
    JobField{"wrap_embeddings", FieldForm::toggle, "on|off",
             "Embeddings and head are units of their own. Default: on; PyTorch runtimes: off",
             get_toggle<&Job::wrap_embeddings>, set_toggle<&Job::wrap_embeddings>},
    JobField{"prefetch", FieldForm::text, "backward=pre|post|none,forward=K,limit=N",
             "How far ahead units are gathered (limit 0: as needed). Default: backward=post,forward=1,limit=0",
             get_prefetch, set_prefetch},
    JobField{"reduce_finish", FieldForm::text, "early|end",
             "When reduced gradients are added to their shard. Default: early",
             get_choice<&Job::reduce_finish, kFinishes>, set_choice<&Job::reduce_finish, kFinishes>},
    JobField{
        "accumulate", FieldForm::text, "sharded|unsharded",
        "Gradients between micro-batches: reduced shards, or whole ones that are reduced once a step. Default: sharded",
        get_choice<&Job::accumulate, kAccumulates>, set_choice<&Job::accumulate, kAccumulates>},
    JobField{"bucket_bytes", FieldForm::integer, "N",
             "Gradients that are summed over replicas at once, in bytes. Default: 26214400 (25 MiB)",
             get_count<&Job::bucket_bytes>, set_count<&Job::bucket_bytes>},
    JobField{"reshard_head", FieldForm::toggle, "on|off", "Release the head's unit while the loss runs. Default: off",
             get_toggle<&Job::reshard_head>, set_toggle<&Job::reshard_head>},
    JobField{"deterministic", FieldForm::toggle, "on|off", "Only kernels with a fixed order of sums. Default: off",
             get_toggle<&Job::deterministic>, set_toggle<&Job::deterministic>},
    JobField{"load", FieldForm::text, "each|rank0",
             "Who reads the first weights: each rank its rows, or rank 0 for all. Default: each",
             get_choice<&Job::load, kLoads>, set_choice<&Job::load, kLoads>},
    JobField{"checkpointing", FieldForm::text, "none|full|every:N|selective",
             "Which activations are recomputed in backward. Default: none", get_checkpointing, set_checkpointing},
    JobField{"offload", FieldForm::list, "none|params|optimizer|optimizer+gradients|activations",
             "What lives in host memory; a list. Default: none", get_offload, set_offload},
    JobField{"optimizer", FieldForm::text, "adamw:fused|foreach|loop", "Default: adamw:fused", get_optimizer,
             set_optimizer},
    JobField{"loss", FieldForm::text, "full|chunked:N",
             "Whole logits, or head and loss in N chunks of rows. Default: full", get_loss, set_loss},
    JobField{"attention", FieldForm::text, "auto|flash|efficient|cudnn|math", "Attention kernel. Default: auto",
             get_choice<&Job::attention, kAttentions>, set_choice<&Job::attention, kAttentions>},
    JobField{"allocator", FieldForm::text, "native|expandable|KEY=VALUE,...",
             "Settings of the caching allocator. Default: expandable; PyTorch runtimes: native", get_allocator,
             set_allocator},
    JobField{"freeze", FieldForm::list, "PATTERN,...",
             "What is not trained: globs over parameter names, layers:FIRST-LAST, embeddings, head. Default: none",
             get_freeze, set_freeze},
    JobField{"gradient_mask", FieldForm::text, "none|keep:P|file:PATH",
             "Child tuning: gradients kept with probability P, drawn each step, or by a safetensors file of masks. "
             "Default: none",
             get_gradient_mask, set_gradient_mask},
    JobField{"lora_rank", FieldForm::integer, "N", "Rank of adapters", get_count<&Job::lora_rank>,
             set_count<&Job::lora_rank>},
    JobField{"seq_len", FieldForm::integer, "N", "Tokens of a row. Default: min(max_position_embeddings, 4096)",
             get_count<&Job::sequence>, set_count<&Job::sequence>},
    JobField{"micro_batch", FieldForm::integer, "N", "Rows a rank runs at once. Default: from the other two, or 1",
             get_count<&Job::micro_batch>, set_count<&Job::micro_batch>},
    JobField{"grad_accum", FieldForm::integer, "N", "Micro-batches of a step. Default: from the other two, or 1",
             get_count<&Job::accumulation>, set_count<&Job::accumulation>},
    JobField{"global_batch", FieldForm::integer, "N",
             "Rows of a step = micro-batch x accumulation x data ranks. Default: from the other two, or data ranks",
             get_count<&Job::global_batch>, set_count<&Job::global_batch>},
};

}  // namespace

std::span<const JobField> job_fields() { return kJobFields; }

const JobField& job_field_named(std::string_view name) {
  std::string wanted(name);
  std::ranges::replace(wanted, '-', '_');
  const auto* const row = std::ranges::find(kJobFields, wanted, &JobField::name);
  if (row == kJobFields.end()) {
    throw InputError(
        fmt::format("job field \"{}\": unknown{}", printable(name), did_you_mean(wanted, names_of(kJobFields))));
  }
  return *row;
}

void set_job_field(Job& job, const JobField& field, std::string_view value, const std::string& where) {
  if (value.size() > kLongestText) throw InputError(fmt::format("{}: longer than {} bytes", where, kLongestText));
  try {
    field.set(job, value);
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
    flags += fmt::format("{}{} {}", flags.empty() ? "" : " ", flag_of(field), value);
    field.set(reference, value);  // the values that it sets need no flags of their own
  }
  return flags;
}

}  // namespace vramfit
