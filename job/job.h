// How a model is trained: one plain struct, one JSON form (job/fields/job_json.h), one set of flags
// (cli/flags/job_flags.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/choices.h"
#include "job/stacks/axolotl_parts.h"
#include "job/stacks/grpo_choices.h"
#include "job/stacks/liger_parts.h"
#include "job/stacks/zero3_sizes.h"
#include "model_specs/dtype.h"

namespace vramfit {

enum class Runtime {
#define RUNTIME(x, name) x,
#include "job/stacks/runtimes.def"
#undef RUNTIME
};
/// FullyShardedDataParallel or fully_shard.
constexpr bool is_fsdp(Runtime runtime) {
  return runtime == Runtime::pytorch_fsdp1 || runtime == Runtime::pytorch_fsdp2;
}
enum class Modeling {
  vramfit,
  torchtitan,     // of December 2024
  torchtitan_02,  // its release 0.2
  transformers,
  trl,
  trl_dpo,
  trl_reward,
  trl_grpo,
  accelerate,
  torchtune
};
enum class Method { full, lora, qlora };

/// A named precision is a row of dtypes, each of which may be overridden (docs/precision.md).
struct Precision {
  std::string name = "bf16-mixed";
  Dtype storage = Dtype::f32, compute = Dtype::bf16, reduce = Dtype::f32, buffer = Dtype::f32, output = Dtype::bf16,
        state = Dtype::f32;
};
/// The row of `name`; throws InputError listing the known ones.
Precision precision_named(std::string_view name);
/// Whether the job computes its linears in FP8 where possible.
inline bool wants_fp8(const Precision& precision) { return precision.name == "fp8"; }

/// Ranks along each axis.
struct Mesh {
#define AXIS(x) std::int64_t x = 1;
#include "job/sharding/axes.def"
#undef AXIS
  bool operator==(const Mesh&) const = default;
};
struct Coords {
#define AXIS(x) std::int64_t x = 0;
#include "job/sharding/axes.def"
#undef AXIS
  bool operator==(const Coords&) const = default;
};

enum class BackwardPrefetch { pre, post, none };
enum class ReduceFinish { early, end };
enum class Accumulate { sharded, unsharded };
enum class OptimizerImplementation { fused, foreach, loop, paged, deepspeed, torchao };
enum class Load { each, rank0 };
enum class KernelSource { libtorch, vramfit, liger };
enum class Attention { automatic, flash, efficient, cudnn, math, flash_attn };

/// reduce_bucket_size of DeepSpeed's ZeRO (0.19, runtime/zero/config.py): 5e8 numbers, of 2 bytes each.
inline constexpr std::int64_t kDeepSpeedBucketBytes = 1'000'000'000;
/// "auto", until the model is known: its hidden size squared in numbers (transformers 5.23, integrations/deepspeed.py:
/// trainer_config_finalize).
inline constexpr std::int64_t kBucketByHiddenSize = -1;

struct Job {
  Runtime runtime = Runtime::vramfit;
  Modeling modeling = Modeling::vramfit;
  Method method = Method::full;
  Precision precision;
  LossScale loss_scale;
  Mesh mesh;
  std::string sharding = "full-shard";  // row of kShardings (job/sharding/sharding.h)
  Reshard reshard;
  Wrap wrap;
  bool wrap_embeddings = true;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::post;
  std::int64_t forward_prefetch = 1;  // units gathered ahead in forward
  std::int64_t prefetch_limit = 0;    // gathers in flight; 0: no limit
  ReduceFinish reduce_finish = ReduceFinish::early;
  std::int64_t bucket_bytes = 25 << 20;        // of gradients summed over replicas at once
  std::optional<bool> overlap_comm;            // of DeepSpeed; none: as overlaps_reductions() says
  std::optional<bool> find_unused_parameters;  // of DDP; none: as finds_unused_parameters() says
  Zero3Sizes zero3_sizes;
  GrpoChoices grpo;           // of TRL's GRPOTrainer
  bool reshard_head = false;  // release the head's unit while the loss runs
  bool deterministic = false;
  Load load = Load::each;  // who reads the initial weights
  Checkpointing checkpointing;
  bool reentrant_checkpoints = false;  // that run backward within backward (use_reentrant of torch.utils.checkpoint)
  bool packs_documents = false;        // SFTTrainer's packing (bfd): a micro-batch is one row of documents
  std::vector<std::string> offload;    // params, optimizer, optimizer+gradients, activations
  std::string optimizer = "adamw";     // of the list in job/optimizers/optimizers.def
  OptimizerImplementation optimizer_implementation = OptimizerImplementation::fused;
  bool optimizer_in_backward = false;  // each unit is updated as soon as its gradients are final
  Loss loss;
  LossTerms loss_terms;
  Attention attention = Attention::automatic;
  bool compile = false;                  // torch.compile, under PyTorch's runtimes: the model and its loss
  std::string allocator = "expandable";  // native, expandable, arena, or KEY=VALUE,...
  std::vector<std::string> freeze;       // globs over parameter names, or parts of the model by name
  std::optional<Dtype> master_dtype;     // of trained matrices of layers, with scales; none: precision.storage
  std::optional<Dtype> gradient_dtype;   // while they add up; FP8: of trained matrices; none: precision.storage
  bool sends_fp8_gradients = false;      // to the ranks that keep them, as such codes
  std::optional<Dtype> frozen_dtype;     // of frozen parameters' shards; none: precision.storage
  std::string quantization = "none";     // row of job/parameters/quantization.h, of frozen matrices of layers
  KernelSource kernels = KernelSource::libtorch;  // on GPUs, of what has own ones (program/stages/own_kernels.h)
  LigerParts liger;                               // of KernelSource::liger
  AxolotlParts axolotl;                           // of adapters, beside either
  GradientMask gradient_mask;
  Lora lora;
  std::int64_t sequence = 0;          // tokens; 0 until resolved
  std::int64_t rotary_positions = 0;  // of torchtune's tables of rotations; 0: as many as `sequence`
  std::int64_t micro_batch = 1, accumulation = 1, global_batch = 0;
  Accumulate accumulate =
      Accumulate::sharded;  // what is kept between micro-batches: reduced shards, or whole gradients
};

/// Whether DeepSpeed reduces, and with ZeRO-3 gathers, on streams of their own. By default ZeRO-3 alone does (0.19,
/// runtime/zero/config.py: overlap_comm_valid).
bool overlaps_reductions(const Job& job);

/// Whether DDP looks for parameters that a step doesn't use. By default the Trainer has it do so where nothing is
/// checkpointed, and around PEFT's models (5.23, trainer.py: _build_accelerator_args); DDP's own default is not to.
bool finds_unused_parameters(const Job& job);

/// Whether torchtitan trains, as of any date.
inline bool is_torchtitan(const Job& job) {
  return job.modeling == Modeling::torchtitan || job.modeling == Modeling::torchtitan_02;
}

/// Whether rows come in pairs, of which a micro-batch of N has N: TRL's DPOTrainer and RewardTrainer.
inline bool has_pairs(const Job& job) {
  return job.modeling == Modeling::trl_dpo || job.modeling == Modeling::trl_reward;
}

/// Whether one of TRL's trainers trains: SFTTrainer, GRPOTrainer, or one of pairs.
inline bool has_trl(const Job& job) {
  return job.modeling == Modeling::trl || job.modeling == Modeling::trl_grpo || has_pairs(job);
}

/// Whether the model gives each row a number in place of logits (transformers' ...ForSequenceClassification).
inline bool is_classifier(const Job& job) { return job.modeling == Modeling::trl_reward; }

/// Whether DPOTrainer trains all weights under FSDP, beside a reference model.
inline bool has_dpo_reference_under_fsdp(const Job& job) {
  return job.modeling == Modeling::trl_dpo && job.method == Method::full && is_fsdp(job.runtime);
}

/// Whether transformers' Trainer trains, or one of TRL's, which are made from it.
inline bool has_trainer(const Job& job) { return job.modeling == Modeling::transformers || has_trl(job); }

/// Whether one of transformers' models is trained that accelerate has set up: by a Trainer, or in a loop of one's own.
inline bool uses_accelerate(const Job& job) { return has_trainer(job) || job.modeling == Modeling::accelerate; }

/// How many rows of `sequence` tokens a micro-batch of N has: N, or of pairs 2N.
std::int64_t rows_of_micro_batch(const Job& job);
/// Of all ranks and micro-batches.
std::int64_t tokens_of_step(const Job& job);

/// Micro-batches that GRPOTrainer generates for at once (steps_per_generation), and the completions of a prompt among
/// them (num_generations): TRL's default where it divides all of them, or all.
std::int64_t micro_batches_of_generation(const Job& job);
std::int64_t completions_of_group(const Job& job);
/// Whether GRPOTrainer trains on completions in later steps, too, so that it keeps their log-probabilities.
bool reuses_completions(const Job& job);

/// Data-parallel ranks: each reads different rows of the global batch.
std::int64_t data_ranks(const Job& job);

/// How the loss is scaled, LossScaleByPrecision resolved.
LossScale loss_scaling(const Job& job);
bool scales_loss(const Job& job);

}  // namespace vramfit
