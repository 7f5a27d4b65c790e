// This project's own engine.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/fields/trained_dtype.h"
#include "job/parameters/quantization.h"
#include "job/sharding/sharding.h"
#include "program/not_modelled.h"
#include "program/ops/fp8.h"
#include "program/optimizers/optimizers.h"
#include "program/runtimes/runtimes.h"
#include "program/stages/fp8_gradients.h"
#include "program/stages/offload.h"
#include "program/stages/optimizer_in_backward.h"
#include "program/stages/own_kernels.h"
#include "program/stages/scaled_masters.h"

namespace vramfit {

namespace {

/// Sums over ranks are made on cards.
void require_sums(const Job& job) {
  const bool is_split = sharding_named(job.sharding).parameters && job.mesh.shard > 1;
  if (optimizer_named(job.optimizer).sums.empty() || !is_split || !offload_of(job).states) return;
  throw Excluded(
      fmt::format("--optimizer {} with --offload {} and sharded parameters (its update sums over ranks on the card, "
                  "where its states "
                  "take little; leave out --offload, or use adamw-4bit)",
                  job.optimizer, fmt::join(job.offload, ",")));
}

/// Calls that make tensors on the card, which take parameters and states of one dtype, as torch.optim.AdamW has them.
void require_calls(const Job& job) {
  if (!is_of_calls(job.optimizer_implementation)) return;
  const std::string form = "--optimizer " + job_field_named("optimizer").get(job);
  if (offload_of(job).states) {
    throw Excluded(fmt::format("{} with --offload {} (the CPU updates by one loop: use --optimizer {}:fused)", form,
                               fmt::join(job.offload, ","), job.optimizer));
  }
  if (job.precision.storage == job.precision.state) return;
  // States of fp16 would be refused next.
  const std::string_view storage = dtype_name(job.precision.storage);
  const std::string or_states =
      job.precision.storage == Dtype::f16 ? "" : fmt::format(", or --state-dtype {}", storage);
  throw Excluded(
      fmt::format("{} with --storage-dtype {} and --state-dtype {} (LibTorch's calls take one dtype: use "
                  "--optimizer {}:fused{})",
                  form, storage, dtype_name(job.precision.state), job.optimizer, or_states));
}

/// Whether any of its states has the dtype of --state-dtype.
bool keeps_state_dtype(const Optimizer& optimizer) {
  return std::ranges::any_of(optimizer.states, [](const OptimizerState& state) {
    return state.holds != OptimizerState::Holds::updates && !state.dtype;
  });
}

/// Numbers of fp16 below 6e-8 are 0: a second average then is, for most weights, and the update divides by it.
void require_states(const Job& job) {
  const Precision& p = job.precision;
  const Optimizer& row = optimizer_named(job.optimizer);
  const bool has_numbers = keeps_state_dtype(row);
  const std::string both = fmt::format("--optimizer {} with --storage-dtype {} and --state-dtype {}", job.optimizer,
                                       dtype_name(p.storage), dtype_name(p.state));
  if (has_numbers && p.state == Dtype::f16) {
    throw NotModelled(fmt::format(
        "{} ({})", both,
        row.takes_other_states
            ? "squares of gradients below 6e-8 would vanish; use --state-dtype bf16 or fp32, or --optimizer adamw-fp8, "
              "which scales them"
            : "averages of gradients below 6e-8 would vanish; use --optimizer adamw with --state-dtype bf16 or fp32"));
  }
  if (p.storage == p.state || row.takes_other_states) return;
  throw Excluded(fmt::format(
      "{} ({})", both,
      has_numbers ? "its states have the dtype of --storage-dtype; adamw takes fp32 and bf16"
                  : fmt::format("its states have a form of their own: use --state-dtype {}", dtype_name(p.storage))));
}

/// Whatever dtype ranks reduce in, gradients wait for the update in the parameters' dtype or in one of their own.
void require_gradients(const Job& job) {
  const Dtype storage = job.precision.storage, kept = kept_gradient_dtype(job);
  if (kept == storage || !is_of_calls(job.optimizer_implementation)) return;
  throw Excluded(fmt::format(
      "--optimizer {} with --storage-dtype {} and --gradient-dtype {} (LibTorch's calls take one dtype: use "
      "--optimizer {}:fused, or leave out --gradient-dtype)",
      job_field_named("optimizer").get(job), dtype_name(storage), dtype_name(kept), job.optimizer));
}

/// LibTorch's fused kernels want states of the parameters' dtype; optimizers with updates of their own say otherwise.
void require_optimizer(const Job& job, const Cluster& cluster) {
  if (!has_optimizer(job)) {
    const OptimizerImplementation form = job.optimizer_implementation;
    throw NotModelled(fmt::format("--optimizer {} ({}: use {}:fused)", job_field_named("optimizer").get(job),
                                  form == OptimizerImplementation::deepspeed ? "--stack deepspeed has it"
                                  : form == OptimizerImplementation::torchao
                                      ? "--stack transformers has it"
                                      : "PyTorch's runtimes have that form, as --runtime pytorch-fsdp2",
                                  job.optimizer));
  }
  if (cluster.is_cpu() && offload_of(job).paged_states) {
    throw Excluded(fmt::format("--optimizer {} with CPU ranks (all of their memory is paged: use {}:fused)",
                               job_field_named("optimizer").get(job), job.optimizer));
  }
  require_sums(job);
  require_calls(job);
  const Precision& p = job.precision;
  if (optimizer_named(job.optimizer).rounds_randomly && p.storage != Dtype::bf16) {
    throw Excluded(fmt::format(
        "--optimizer {} with --storage-dtype {} (it rounds parameters stored in bf16; adamw needs none of that)",
        job.optimizer, dtype_name(p.storage)));
  }
  require_states(job);
  require_gradients(job);
}

/// The loss reads logits of the compute dtype as fp32, block by block: what FSDP2's output_dtype=float32 computes,
/// without its copy. Anything else would round them once more.
void require_output(const Precision& p) {
  if (p.output == p.compute || p.output == Dtype::f32) return;
  throw Excluded(fmt::format("--output-dtype {} with --compute-dtype {} (use --output-dtype {} or fp32)",
                             dtype_name(p.output), dtype_name(p.compute), dtype_name(p.compute)));
}

void require_precision(const Job& job) {
  const Precision& p = job.precision;
  if (wants_fp8(p) && p.compute != Dtype::bf16) {
    throw Excluded(fmt::format("--precision fp8 with --compute-dtype {} (use bf16)", dtype_name(p.compute)));
  }
  require_output(p);
}

/// Rank 0 would have to send codes, in blocks, instead of rows.
void require_quantization(const Job& job) {
  if (quantization_named(job.quantization) == nullptr || job.load == Load::each) return;
  throw Excluded(fmt::format("--quantization {} with --load rank0 (use --load each)", job.quantization));
}

void require_own(const Job& job, const Cluster& cluster) {
  if (job.modeling != Modeling::vramfit) refuse_field(job, "modeling");
  if (overlaps_reductions(job)) {
    throw NotModelled("--overlap-comm on with --runtime vramfit (--stack deepspeed has it; reductions overlap anyway)");
  }
  if (job.rotary_positions > 0) refuse_field(job, "rotary_positions");
  if (job.reentrant_checkpoints) refuse_field(job, "reentrant_checkpoints");
  if (job.packs_documents) refuse_field(job, "packing");
  if (job.find_unused_parameters.value_or(false)) refuse_field(job, "find_unused_parameters");
  if (job.zero3_sizes != Zero3Sizes{}) {
    throw NotModelled("--zero3-sizes with --runtime vramfit (--stack deepspeed has them; here: --prefetch, --wrap)");
  }
  if (job.grpo != GrpoChoices{}) refuse_field(job, "grpo");
  if (job.kernels == KernelSource::liger || job.axolotl.any()) refuse_field(job, "kernels");
  if (job.compile) {
    throw NotModelled(
        "--compile on with --runtime vramfit (its kernels are fused; leave it out, or choose a PyTorch runtime)");
  }
  require_precision(job);
  require_scaled_masters(job);
  require_optimizer(job, cluster);
  require_quantization(job);
  require_offload(job);
  require_optimizer_in_backward(job);
  require_fp8_gradients(job);
  require_gpus_for_own_kernels(job, cluster);
  const bool any_device = job.attention == Attention::automatic || job.attention == Attention::math;
  if (cluster.is_cpu() && !any_device) refuse_field(job, "attention");
}

}  // namespace

RuntimeRow vramfit_row() { return {.require_rules = require_own, .make_program = program::lower}; }

}  // namespace vramfit
