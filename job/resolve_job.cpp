#include "job/resolve_job.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/cluster/precision_support.h"
#include "job/fields/bucket_text.h"
#include "job/fields/job_field_names.h"
#include "job/fields/job_fields.h"
#include "job/fields/zero_text.h"
#include "job/loss/default_loss.h"
#include "job/parameters/freeze.h"
#include "job/sharding/mesh.h"
#include "job/sharding/sharding.h"
#include "job/stacks/axolotl_fsdp2.h"
#include "job/stacks/stacks.h"
#include "job/stacks/torchtune.h"
#include "job/stacks/zero3_auto.h"

namespace vramfit {

namespace {

constexpr std::int64_t kDefaultMostSequence = 4096;
constexpr std::int64_t kDefaultLoraRank = 8;
constexpr double kDefaultLoraAlpha = 8;

using Notes = std::vector<std::string>;

/// The row of `name`, except for the dtypes that were set individually.
Precision precision_with(const Job& job, std::string_view name) {
  const Precision& chosen = job.precision;
  Precision precision = precision_on(job, name);
  for (Dtype Precision::*const dtype : {&Precision::storage, &Precision::compute, &Precision::reduce,
                                        &Precision::buffer, &Precision::output, &Precision::state}) {
    if (chosen.*dtype != kUnsetDtype) precision.*dtype = chosen.*dtype;
  }
  return precision;
}

std::string place_of_default(const Cluster& cluster) {
  if (cluster.is_cpu()) return "CPU ranks";
  const bool computes_bf16 = card_support(Dtype::bf16, cluster.card.device.compute_capability) == Support::native;
  return computes_bf16 ? "GPUs" : fmt::format("{}, which has no bf16 units", cluster.card.name);
}

void resolve_precision(Job& job, const Cluster& cluster, Notes& notes) {
  if (job.precision.name.empty()) {
    job.precision = precision_with(job, default_precision(cluster));
    notes.push_back(fmt::format("precision {} (the default on {})", job.precision.name, place_of_default(cluster)));
  }
  require_card_support(job, cluster);
  for (std::string& note : precision_notes(job, cluster)) notes.push_back(std::move(note));
}

void resolve_sequence(Job& job, const ModelSpec& spec, Notes& notes) {
  const std::int64_t most = spec.max_position_embeddings;
  if (job.sequence == 0) {
    job.sequence = most > 0 ? std::min(most, kDefaultMostSequence) : kDefaultMostSequence;
    notes.push_back(fmt::format("--seq-len {} (the smaller of the model's {} positions and {})", job.sequence, most,
                                kDefaultMostSequence));
  } else if (most > 0 && job.sequence > most) {
    if (spec.has_position_table) {
      throw Conflict(fmt::format("--seq-len {}: {} has a table of {} positions; give at most that", job.sequence,
                                 spec.model_type, most));
    }
    notes.push_back(fmt::format("--seq-len {} is beyond the model's {} positions", job.sequence, most));
  }
}

void check_mesh(const Job& job, const Sharding& sharding, const Cluster& cluster) {
  const auto refuse = [&](const std::string& what) {
    throw Conflict(fmt::format("--mesh {}: {}", mesh_text(job.mesh), what));
  };
  if (data_ranks(job) != cluster.cards()) {
    refuse(fmt::format("{} ranks, but {} has {} cards", data_ranks(job), cluster.text, cluster.cards()));
  }
  if (!sharding.parameters && job.mesh.shard != 1) refuse("no-shard splits nothing; give shard=1");
  if (sharding.parameters && !sharding.hybrid && job.mesh.replicate != 1) {
    refuse(fmt::format("{} has no replicas; give replicate=1 or --sharding hybrid-shard", sharding.name));
  }
}

void resolve_mesh(Job& job, const Cluster& cluster, Notes& notes) {
  const Sharding& sharding = sharding_named(job.sharding);
  Mesh& mesh = job.mesh;
  const bool by_default = mesh.replicate == 0 && mesh.shard == 0;
  if (by_default) {
    if (!sharding.parameters) {
      mesh = {.replicate = cluster.cards(), .shard = 1};
    } else if (sharding.hybrid) {
      mesh = {.replicate = cluster.nodes, .shard = cluster.cards_per_node};
    } else {
      mesh = {.replicate = 1, .shard = cluster.cards()};
    }
    if (cluster.cards() > 1) {
      notes.push_back(fmt::format("--mesh {} (the default of {})", mesh_text(mesh), sharding.name));
    }
  } else {
    std::int64_t& missing = mesh.replicate == 0 ? mesh.replicate : mesh.shard;
    const std::int64_t given = mesh.replicate == 0 ? mesh.shard : mesh.replicate;
    if (missing == 0) missing = std::max<std::int64_t>(1, cluster.cards() / given);
  }
  check_mesh(job, sharding, cluster);
}

void check_reshard(const Job& job) {
  const Sharding& sharding = sharding_named(job.sharding);
  if (sharding.reshard || std::holds_alternative<ReshardByDefault>(job.reshard)) return;
  if (sharding.parameters && std::holds_alternative<ReshardNever>(job.reshard)) return;  // what these strategies mean
  throw Conflict(
      sharding.parameters
          ? fmt::format("--reshard with --sharding {}: it never reshards; leave --reshard out, or use {}",
                        sharding.name, sharding.hybrid ? "hybrid-shard" : "full-shard")
          : fmt::format("--reshard with --sharding {}: nothing is sharded; leave --reshard out", sharding.name));
}

/// Micro-batch x accumulation x data ranks = global batch.
void resolve_batch(Job& job, Notes& notes) {
  const std::int64_t ranks = data_ranks(job);
  std::int64_t& micro = job.micro_batch;
  std::int64_t& accumulation = job.accumulation;
  if (job.global_batch == 0) {
    if (micro == 0) notes.emplace_back("--micro-batch 1");
    if (accumulation == 0) notes.emplace_back("--grad-accum 1");
    micro = std::max<std::int64_t>(micro, 1);
    accumulation = std::max<std::int64_t>(accumulation, 1);
    job.global_batch = checked_mul(checked_mul(micro, accumulation), ranks);
    notes.push_back(fmt::format("--global-batch {} (micro-batch x accumulation x data ranks)", job.global_batch));
    return;
  }
  const auto refuse = [&](const std::string& what) {
    throw Conflict(fmt::format("--global-batch {}: {}", job.global_batch, what));
  };
  if (job.global_batch % ranks != 0) refuse(fmt::format("can't be divided by {} data ranks", ranks));
  const std::int64_t rows = job.global_batch / ranks;
  if (micro == 0 && accumulation == 0) {
    micro = 1;
    notes.push_back(fmt::format("--micro-batch 1 (accumulating {} times)", rows));
  }
  const std::int64_t given = micro == 0 ? accumulation : micro;
  if (rows % given != 0) {
    refuse(fmt::format("{} rows a rank can't be divided by {} {}", rows, micro == 0 ? "--grad-accum" : "--micro-batch",
                       given));
  }
  if (rows / given > kMostCount) {
    refuse(fmt::format("leaves {} to {} for each of {} data ranks, more than {}", rows / given,
                       micro == 0 ? "--micro-batch" : "--grad-accum", ranks, kMostCount));
  }
  if (micro == 0) micro = rows / accumulation;
  if (accumulation == 0) accumulation = rows / micro;
  if (checked_mul(micro, accumulation) != rows) {
    refuse(fmt::format("is not --micro-batch {} x --grad-accum {} x {} data ranks = {}", micro, accumulation, ranks,
                       checked_mul(checked_mul(micro, accumulation), ranks)));
  }
}

void resolve_loss(Job& job, const ModelSpec& spec, const Cluster& cluster, Notes& notes) {
  if (!std::holds_alternative<UnsetLoss>(job.loss)) return;
  set_default_loss(job, spec, cluster);
  const auto* chunked = std::get_if<ChunkedLoss>(&job.loss);
  if (chunked == nullptr) return;
  if (job.modeling == Modeling::torchtune) {
    notes.push_back(fmt::format("--loss chunked:{} (torchtune's CEWithChunkedOutputLoss)", chunked->chunks));
    return;
  }
  notes.push_back(
      fmt::format("--loss chunked:{} (the default where {} tokens of logits at once would need more memory)",
                  chunked->chunks, job.micro_batch * job.sequence));
}

void check_ignored_label(const Job& job, const ModelSpec& spec) {
  const std::int64_t label = job.loss_terms.ignored_label;
  if (label == kUnlabelled || label < spec.vocab_size) return;
  throw Conflict(fmt::format("--ignore-index {}: the vocabulary has {} token ids, from 0; give one of them, or {}",
                             label, spec.vocab_size, kUnlabelled));
}

void check_rest(const Job& job) {
  const auto* reshard = std::get_if<ReshardGroups>(&job.reshard);
  if (reshard != nullptr && job.mesh.shard % reshard->ranks != 0) {
    std::string groups;
    for (std::int64_t ranks = 2; ranks <= job.mesh.shard; ++ranks) {
      if (job.mesh.shard % ranks == 0) groups += fmt::format("{}{}", groups.empty() ? "" : ", ", ranks);
    }
    throw Conflict(fmt::format("--reshard {}: {} ranks do not divide into such groups{}", reshard->ranks,
                               job.mesh.shard, groups.empty() ? "; leave it out" : ", only into groups of " + groups));
  }
}

/// Refuses what changes nothing. TRL's trainers (1.16) never call the function that Liger replaces. monkey_patch.py of
/// liger-kernel 0.8: apply_liger_kernel_to_mistral gives a name to a class that transformers 5's code for Mistral
/// doesn't look at.
void check_kernels(const Job& job, const ModelSpec& spec) {
  if (job.axolotl.any() && job.method == Method::full) {
    throw Conflict(
        "--kernels axolotl: they compute linears with adapters; give --method lora or qlora, or leave it out");
  }
  if (!job.liger.cross_entropy.value_or(false)) return;
  if (has_trl(job)) {
    throw Conflict("--kernels liger:cross_entropy=on: TRL's trainers compute their losses without it; leave it out");
  }
  if (spec.model_type == "mistral") {
    throw Conflict("--kernels liger:cross_entropy=on: Liger leaves a Mistral's loss as it is; leave it out");
  }
}

}  // namespace

/// Rank, alpha and dropout are those of PEFT's LoraConfig; the targets are QLoRA's, all linears (Dettmers et al. 2023,
/// section 4). Weights of qlora are stored as in that paper.
void resolve_adapters(Job& job, Notes& notes) {
  Lora& lora = job.lora;
  if (job.method == Method::full) {
    for (const std::string_view field : {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "rslora", "dora"}) {
      const JobField& row = job_field_named(field);
      if (row.get(job).empty()) continue;
      throw Conflict(fmt::format("{} with --method full: there are no adapters; leave it out, or use --method lora",
                                 flag_of(row)));
    }
    return;
  }
  if (lora.rank == 0) {
    lora.rank = kDefaultLoraRank;
    notes.push_back(fmt::format("--lora-rank {}", lora.rank));
  }
  if (lora.alpha == 0) {
    lora.alpha = kDefaultLoraAlpha;
    notes.push_back(fmt::format("--lora-alpha {}", lora.alpha));
  }
  if (lora.targets.empty()) notes.emplace_back("--lora-targets all-linear");
  if (job.method == Method::qlora && job.quantization == "none") {
    job.quantization = "nf4-double";
    notes.emplace_back("--quantization nf4-double");
  }
  const bool converts_frozen = job.runtime == Runtime::deepspeed && job.method != Method::qlora;
  if (has_trl(job) && !converts_frozen && !job.frozen_dtype) {
    job.frozen_dtype = Dtype::f32;
    notes.emplace_back("--frozen-dtype fp32 (TRL loads weights so unless its model_init_kwargs say otherwise)");
  }
  if (job.method == Method::qlora && is_axolotls_fsdp2(job)) {
    if (!job.frozen_dtype) {
      job.frozen_dtype = job.precision.compute;
      notes.push_back(fmt::format("--frozen-dtype {} (axolotl prepares nothing for training under FSDP)",
                                  dtype_name(job.precision.compute)));
    }
    notes.emplace_back(
        "bnb_4bit_quant_storage in the compute dtype, and each GPU holds the whole model in 4 bits while it loads, as "
        "axolotl has it");
    return;
  }
  if (job.method == Method::qlora && uses_accelerate(job) && job.runtime != Runtime::deepspeed && !job.frozen_dtype) {
    job.frozen_dtype = Dtype::f32;
    notes.emplace_back("--frozen-dtype fp32 (PEFT's prepare_model_for_kbit_training)");
  }
  if (job.method == Method::qlora && is_fsdp(job.runtime) && uses_accelerate(job)) {
    const bool is_joined = job.runtime == Runtime::pytorch_fsdp1;
    notes.push_back(fmt::format(
        "bnb_4bit_quant_storage in the compute dtype, without which {}, and device_map={{\"\": \"cpu\"}}, "
        "without which each GPU holds all of them while it loads",
        is_joined ? "FSDP1 can't join weights in 4 bits with others" : "accelerate shards no weights in 4 bits"));
  }
}

/// torchtune (modules/tied_linear.py): TiedLinear reads the embedding's weight outside the embedding's forward, so that
/// custom_sharded_layers can't name it; nothing is wrapped on one GPU.
void resolve_wrapped_ends(Job& job, const ModelSpec& spec, Notes& notes) {
  if (job.axolotl.any() && job.runtime == Runtime::pytorch_fsdp2 && job.wrap_embeddings) {
    job.wrap_embeddings = false;
    notes.emplace_back("--wrap-embeddings off (axolotl's FSDP2 leaves embedding and output layer to the root)");
  }
  if (job.modeling != Modeling::torchtune || !job.wrap_embeddings) return;
  const bool is_whole = job.runtime == Runtime::pytorch;
  if (!is_whole && !spec.tie_word_embeddings) return;
  job.wrap_embeddings = false;
  notes.emplace_back(is_whole ? "--wrap-embeddings off (torchtune wraps nothing on one GPU)"
                              : "--wrap-embeddings off (torchtune can't shard tied embeddings apart)");
}

/// Builders that are named after models make their rotations for the longest sequence of the model.
void resolve_rotations(Job& job, const ModelSpec& spec, Notes& notes) {
  if (job.modeling != Modeling::torchtune) return;
  if (job.rotary_positions > 0) {
    if (job.rotary_positions >= job.sequence) return;
    throw Conflict(fmt::format("--rotary-positions {}: torchtune takes no sequence longer than that; give at least {}",
                               job.rotary_positions, job.sequence));
  }
  const TorchtuneBuilder* const builder = torchtune_builder_of(spec);
  if (builder == nullptr) {
    notes.emplace_back(
        "--rotary-positions as --seq-len (max_seq_len is given to a builder that isn't the model's own)");
  } else if (builder->max_seq_len < job.sequence) {
    notes.push_back(fmt::format("--rotary-positions as --seq-len (torchtune's {} has {}: a builder that takes them)",
                                builder->name, builder->max_seq_len));
  } else {
    job.rotary_positions = builder->max_seq_len;
    notes.push_back(
        fmt::format("--rotary-positions {} (max_seq_len of torchtune's {})", job.rotary_positions, builder->name));
  }
}

void resolve_bucket(Job& job, const ModelSpec& spec, Notes& notes) {
  if (job.bucket_bytes != kBucketByHiddenSize) return;
  if (job.runtime != Runtime::deepspeed) {
    throw Conflict(fmt::format("--bucket-bytes auto is for --stack {}, whose Trainer knows the model; give a number",
                               name_with_deepspeed(job)));
  }
  const std::int64_t bytes = checked_mul(2, checked_mul(spec.hidden_size, spec.hidden_size));
  if (bytes > kMostBucketBytes) {
    throw Conflict(fmt::format("--bucket-bytes auto: a hidden size of {} makes it larger than {}; give a number",
                               spec.hidden_size, kMostBucketBytes));
  }
  job.bucket_bytes = bytes;
  notes.push_back(
      fmt::format("--bucket-bytes {} (2 for each number of {} squared)", job.bucket_bytes, spec.hidden_size));
}

/// torch/distributed/fsdp: what record_stream() marks is free when other streams are done with it. Counted, as in
/// rehearsals, is that they are at once.
void note_late_frees(const Job& job, Notes& notes) {
  if (job.runtime != Runtime::pytorch_fsdp1) return;
  notes.emplace_back(
      "FSDP1's memory counts as free once its host has freed it; a card that is behind its host has it later, "
      "which can be the gathered parameters and gradients of two units more");
}

void resolve_zero3_sizes(Job& job, const ModelSpec& spec, Notes& notes) {
  Zero3Sizes& sizes = job.zero3_sizes;
  const bool has_auto =
      sizes.prefetch_bucket_size == kByHiddenSize || sizes.param_persistence_threshold == kByHiddenSize;
  if (!has_auto) return;
  if (job.runtime != Runtime::deepspeed) {
    throw Conflict(
        fmt::format("--zero3-sizes auto is for --stack {}, whose Trainer knows the model", name_with_deepspeed(job)));
  }
  const std::int64_t hidden = spec.hidden_size;
  if (sizes.prefetch_bucket_size == kByHiddenSize) {
    sizes.prefetch_bucket_size = auto_prefetch_bucket_size(hidden);
  }
  if (sizes.param_persistence_threshold == kByHiddenSize) {
    sizes.param_persistence_threshold = auto_param_persistence_threshold(hidden);
  }
  notes.push_back(
      fmt::format("--zero3-sizes {} (0.9 x {} squared and 10 x {} for auto)", get_zero3_sizes(job), hidden, hidden));
}

/// `none` means something beside adapters alone, where it leaves all weights to train with them.
void resolve_freeze(Job& job) {
  if (job.method == Method::full && freezes_nothing(job)) job.freeze.clear();
}

Job resolve_job(Job job, const ModelSpec& spec, const Cluster& cluster, std::vector<std::string>& notes) {
  resolve_freeze(job);
  resolve_precision(job, cluster, notes);
  resolve_sequence(job, spec, notes);
  resolve_mesh(job, cluster, notes);
  check_reshard(job);
  resolve_batch(job, notes);
  resolve_loss(job, spec, cluster, notes);
  resolve_wrapped_ends(job, spec, notes);
  resolve_bucket(job, spec, notes);
  resolve_zero3_sizes(job, spec, notes);
  resolve_adapters(job, notes);
  resolve_rotations(job, spec, notes);
  check_ignored_label(job, spec);
  check_kernels(job, spec);
  check_rest(job);
  note_late_frees(job, notes);
  return job;
}

}  // namespace vramfit
