#include "job/job.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text/suggest.h"
#include "base/text/units.h"
#include "job/fields/trained_dtype.h"

namespace vramfit {

namespace {

struct PrecisionRow {
  std::string_view name;
  Dtype storage, compute, reduce, buffer, output, state;
};

using enum Dtype;
constexpr std::array kPrecisions{
    PrecisionRow{"fp32", f32, f32, f32, f32, f32, f32},
    PrecisionRow{"bf16-mixed", f32, bf16, f32, f32, bf16, f32},
    PrecisionRow{"bf16-pure", bf16, bf16, bf16, f32, bf16, bf16},
    PrecisionRow{"fp16-mixed", f32, f16, f32, f32, f16, f32},
    PrecisionRow{"fp8", f32, bf16, f32, f32, bf16, f32},
};

}  // namespace

Precision precision_named(std::string_view name) {
  const auto* const row = std::ranges::find(kPrecisions, name, &PrecisionRow::name);
  if (row == kPrecisions.end()) {
    std::vector<std::string> known;
    known.reserve(kPrecisions.size());
    for (const PrecisionRow& p : kPrecisions) known.emplace_back(p.name);
    throw InputError("unknown precision \"" + printable(name) + "\"" + did_you_mean(name, known));
  }
  return {std::string(row->name), row->storage, row->compute, row->reduce, row->buffer, row->output, row->state};
}

LossScale loss_scaling(const Job& job) {
  if (!std::holds_alternative<LossScaleByPrecision>(job.loss_scale)) return job.loss_scale;
  const Precision& p = job.precision;
  const bool narrow = p.compute == Dtype::f16 || p.reduce == Dtype::f16 || kept_gradient_dtype(job) == Dtype::f16;
  if (narrow) return DynamicLossScale{};
  return NoLossScale{};
}

bool scales_loss(const Job& job) { return !std::holds_alternative<NoLossScale>(loss_scaling(job)); }

bool overlaps_reductions(const Job& job) {
  return job.overlap_comm.value_or(job.runtime == Runtime::deepspeed && job.sharding == "full-shard");
}

bool finds_unused_parameters(const Job& job) {
  const bool is_checkpointed = !std::holds_alternative<NoCheckpointing>(job.checkpointing);
  return job.find_unused_parameters.value_or(has_trainer(job) && (job.method != Method::full || !is_checkpointed));
}

namespace {
std::int64_t rows_of(const Job& job, std::int64_t batch) { return has_pairs(job) ? checked_mul(2, batch) : batch; }
}  // namespace

std::int64_t rows_of_micro_batch(const Job& job) { return rows_of(job, job.micro_batch); }

std::int64_t tokens_of_step(const Job& job) { return checked_mul(rows_of(job, job.global_batch), job.sequence); }

std::int64_t micro_batches_of_generation(const Job& job) {
  return job.grpo.steps_per_generation == 0 ? job.accumulation : job.grpo.steps_per_generation;
}

bool reuses_completions(const Job& job) {
  return checked_mul(job.grpo.num_iterations, micro_batches_of_generation(job)) > job.accumulation;
}

std::int64_t completions_of_group(const Job& job) {
  constexpr std::int64_t kUsual = 8;
  const std::int64_t all = checked_mul(checked_mul(job.micro_batch, micro_batches_of_generation(job)), data_ranks(job));
  return all % kUsual == 0 ? kUsual : all;
}

std::int64_t data_ranks(const Job& job) { return checked_mul(job.mesh.replicate, job.mesh.shard); }

}  // namespace vramfit
