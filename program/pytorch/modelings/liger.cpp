#include "program/pytorch/modelings/liger.h"

#include <optional>

#include <fmt/format.h>

#include "base/conflict.h"
#include "job/stacks/axolotl_fsdp2.h"
#include "program/pytorch/modelings/segment_reader.h"

namespace vramfit::eager {

namespace {

/// Granite's logits are divided, which the fused loss can't do, so that another loss is the default there. TRL has an
/// output layer of its own, for which it switches the fused loss off (trl 1.16, trainer/sft_trainer.py).
void choose_loss(const Job& job, const LlamaStyle& style, LigerKernels& kernels) {
  const bool is_trl = has_trl(job) && !is_classifier(job);
  const bool is_fused_by_default = !style.multiplies && !is_trl;
  kernels.fused_loss = job.liger.fused_linear_cross_entropy.value_or(is_fused_by_default);
  kernels.cross_entropy = job.liger.cross_entropy.value_or(style.multiplies);
  if (!kernels.fused_loss) return;
  if (is_classifier(job)) {
    throw LibraryFails(
        "--kernels liger with a reward model, whose forward Liger replaces by one of a model with logits (add "
        "fused_linear_cross_entropy=off)");
  }
  if (is_trl) {
    throw LibraryFails(
        "--kernels liger:fused_linear_cross_entropy=on with TRL's trainers, which refuse it (their own output layer "
        "makes no logits either: leave it out)");
  }
  if (style.multiplies) {
    throw LibraryFails("--kernels liger:fused_linear_cross_entropy=on with Granite, for which Liger has none");
  }
  if (job.runtime == Runtime::pytorch_fsdp2 && !is_axolotls_fsdp2(job) && job.method != Method::full) {
    throw LibraryFails(
        "--kernels liger with adapters under FSDP2, where Liger's fused loss multiplies with a shard of the output "
        "layer's weights, and fails (add fused_linear_cross_entropy=off)");
  }
  if (kernels.cross_entropy) {
    throw LibraryFails(
        "--kernels liger:cross_entropy=on beside the fused loss, which Liger has on by default (add "
        "fused_linear_cross_entropy=off)");
  }
}

}  // namespace

LigerKernels liger_kernels(const Job& job, const LlamaGraph& llama) {
  LigerKernels kernels;
  const LlamaStyle& style = llama.style;
  if (job.kernels != KernelSource::liger) return kernels;
  if (style.has_experts || style.has_sinks) refuse_model(job, "experts, with --kernels liger");
  const bool has_silu = style.activation == Activation::silu;
  const std::optional<bool>&gate = has_silu ? job.liger.swiglu : job.liger.geglu,
        &other = has_silu ? job.liger.geglu : job.liger.swiglu;
  if (other && !gate) {
    throw NotModelled(fmt::format("--kernels liger:{} with a model that has none (its feed-forward is Liger's {})",
                                  has_silu ? "geglu" : "swiglu", has_silu ? "swiglu" : "geglu"));
  }
  kernels.rope = job.liger.rope.value_or(true) && !job.axolotl.copies_attention();
  kernels.norm = job.liger.rms_norm.value_or(true);
  kernels.gate = gate.value_or(true);
  if (style.has_post_norms && llama.blocks.front().q_norm >= 0 && kernels.norm && !kernels.rope) {
    throw NotModelled(
        "norms of Liger's in Gemma 3 without its rotation, which axolotl's kernels for qkv and o leave out, too (add "
        "rms_norm=off)");
  }
  kernels.in_place = !style.has_post_norms;
  choose_loss(job, style, kernels);
  return kernels;
}

void require_no_kernels(const Job& job) {
  if (job.axolotl.any()) refuse_model(job, "a model that axolotl has no kernels for, with --kernels axolotl");
  if (job.kernels != KernelSource::liger) return;
  refuse_model(job, "a model that Liger has no kernels for (leave --kernels liger out, which changes nothing there)");
}

}  // namespace vramfit::eager
