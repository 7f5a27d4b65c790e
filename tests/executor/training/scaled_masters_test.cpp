// Matrices that are kept as fp16 numbers with a scale: rounding against its definition, and training with them.
#include "executor/training/scaled_masters_torch.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "job/fields/job_fields.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/optimizers.h"
#include "tests/executor/training/small_training_torch.h"

namespace vramfit {

namespace {

/// Rounded to fp16 with the least power of two that the largest number can be divided by.
at::Tensor rounded(const at::Tensor& numbers) {
  const double scale = std::exp2(std::ceil(std::log2(numbers.abs().max().item<double>() / 65504)));
  return (numbers / scale).to(at::kHalf).to(at::kFloat) * scale;
}

/// Numbers that are kept, anything at first.
struct Kept {
  ScaledPart part;
  explicit Kept(std::int64_t elements)
      : part{at::full({elements}, std::nan(""), at::kHalf), at::full({1}, std::nan(""), at::kFloat)} {}

  void keep(const at::Tensor& numbers, bool by_calls) const {
    if (!by_calls) return round_scaled_on_cpu(numbers, part);
    const at::Tensor scratch = at::full({ScaledScratch{numbers.numel()}.size()}, std::nan(""), at::kFloat);
    round_scaled_by_calls(numbers, part, scratch);
  }
  at::Tensor read(at::ScalarType type) const {
    at::Tensor numbers = at::empty_like(part.numbers, type);
    scaled_numbers(part, numbers);
    return numbers;
  }
};

Job job_with(const std::string& sharding, int ranks, const std::vector<std::pair<std::string, std::string>>& fields) {
  Job job = testing::small_job(sharding, ranks);
  for (const auto& [field, value] : fields) job_field_named(field).set(job, value);
  return job;
}

/// Losses differ from those with fp32 masters, but by little: in small steps, in which a difference doesn't grow.
void check_trains(Job job) {
  constexpr int kSteps = 3;
  TrainOptions options = testing::options_of(kSteps);
  options.optimizer.learning_rate = 1e-3;
  CAPTURE(job_as_flags(job, Job{}));
  const testing::Trained whole = testing::train(job, kSteps, options);
  job.master_dtype = Dtype::f16;
  const testing::Trained kept = testing::train(job, kSteps, options);
  CHECK(kept.norms != whole.norms);
  testing::check_close(kept.norms, whole.norms, 0.02);
  testing::check_close(kept.losses, whole.losses, 0.001);
}

}  // namespace

TEST_CASE("numbers are rounded once, with the scale of the largest one, and stay when they are rounded again") {
  at::manual_seed(1);
  for (const std::int64_t elements : {std::int64_t{1}, std::int64_t{255}, std::int64_t{5000}, (1 << 20) + 300L}) {
    for (const double size : {1e-9, 1.0, 1e9}) {
      CAPTURE(elements);
      CAPTURE(size);
      const at::Tensor numbers = at::randn({elements}) * at::exp2(at::randn({elements}) * 2) * size;
      const at::Tensor expected = rounded(numbers);
      for (const bool by_calls : {false, true}) {
        const Kept kept(elements);
        kept.keep(numbers, by_calls);
        CHECK(at::equal(kept.read(at::kFloat), expected));
        CHECK(at::equal(kept.read(at::kBFloat16), expected.to(at::kBFloat16)));
        kept.keep(expected, by_calls);
        CHECK(at::equal(kept.read(at::kFloat), expected));
      }
    }
  }
  const Kept zeros(300);
  zeros.keep(at::zeros({300}), true);
  CHECK(zeros.read(at::kFloat).abs().max().item<float>() == 0);
}

TEST_CASE("training with masters in fp16 stays near that with fp32 ones, however the model is split") {
  check_trains(job_with("no-shard", 1, {{"wrap", "size:18000"}, {"freeze", "layers:0"}}));
  check_trains(job_with("no-shard", 2, {{"gradient_dtype", "fp8"}}));
  check_trains(job_with("full-shard", 2, {{"wrap", "none"}, {"accumulate", "unsharded"}, {"reduce_finish", "end"}}));
  check_trains(job_with("shard-grad-op", 2, {{"precision", "bf16-mixed"}, {"checkpointing", "full"}}));
  check_trains(job_with("full-shard", 1, {{"precision", "fp16-mixed"}, {"frozen_dtype", "fp16"}, {"freeze", "*att*"}}));
}

TEST_CASE("every optimizer updates them, at the end of a step or within backward") {
  for (const OptimizerName& row : optimizer_names()) {
    if (optimizer_named(row.name).rounds_randomly) continue;  // of parameters in bf16
    const Job job = job_with("full-shard", 2, {{"optimizer", std::string(row.name)}, {"master_dtype", "fp16"}});
    CAPTURE(row.name);
    testing::check_updated_alike(job);
  }
}

}  // namespace vramfit
