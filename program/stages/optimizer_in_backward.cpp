#include "program/stages/optimizer_in_backward.h"

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/fields/trained_dtype.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

[[noreturn]] void refuse(std::string_view with, std::string_view why) {
  throw Excluded(fmt::format("--optimizer-in-backward on with {} ({})", with, why));
}

std::string as_flag(const Job& job, std::string_view field) {
  const JobField& row = job_field_named(field);
  return fmt::format("{} {}", flag_of(row), row.get(job));
}

/// Another flag, if it alone leaves the loss as it is where fp16 has it scaled by default.
std::string or_another_dtype(const Job& job) {
  if (!std::holds_alternative<LossScaleByPrecision>(job.loss_scale)) return "";
  const bool computes_in_fp16 = job.precision.compute == Dtype::f16 || job.precision.reduce == Dtype::f16;
  if (kept_gradient_dtype(job) != Dtype::f16) return ", or --precision bf16-mixed";
  return job.gradient_dtype && !computes_in_fp16 ? ", or --gradient-dtype bf16" : "";
}

}  // namespace

void require_optimizer_in_backward(const Job& job) {
  if (!job.optimizer_in_backward) return;
  if (job.accumulation > 1)
    refuse(as_flag(job, "grad_accum"), "gradients wait for the last micro-batch; use --grad-accum 1");
  if (scales_loss(job)) {
    refuse(as_flag(job, "loss_scale"),
           "whether a step overflows is known when all gradients are; use --loss-scale none" + or_another_dtype(job));
  }
  if (!std::holds_alternative<NoGradientMask>(job.gradient_mask))
    refuse(as_flag(job, "gradient_mask"), "all gradients are masked at once; use --gradient-mask none");
  if (offload_of(job).states)
    refuse(as_flag(job, "offload"),
           "the CPU updates when all gradients are there; leave it off: with --offload optimizer+gradients they leave "
           "the card within backward");
}

void require_optimizer_in_backward(const Job& job, bool clip) {
  require_optimizer_in_backward(job);
  if (!job.optimizer_in_backward || !clip) return;
  refuse("gradient clipping",
         "the norm is that of all gradients; add --no-clip, or --clip 0 to run, or leave --optimizer-in-backward off");
}

}  // namespace vramfit
