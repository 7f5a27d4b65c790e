// Gradients that are kept in FP8: sums against their definition in PyTorch's own dtype, and training with them.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "executor/training/fp8_gradients_torch.h"
#include "job/fields/job_fields.h"
#include "job/optimizers/optimizers.h"
#include "program/stages/fp8_gradients.h"
#include "tests/executor/training/small_training_torch.h"

namespace vramfit {

namespace {

/// A gradient in FP8, all of it zero at first.
struct Kept {
  at::Tensor codes, scale;
  explicit Kept(std::int64_t elements) : codes(at::zeros({elements}, at::kByte)), scale(at::zeros({1}, at::kFloat)) {}
  at::Tensor values() const { return codes.view(at::kFloat8_e4m3fn).to(at::kFloat) * scale; }
};

/// Rounded to e4m3 with the least power of two that the largest number can be divided by.
at::Tensor rounded(const at::Tensor& sum) {
  const double scale = std::exp2(std::ceil(std::log2(sum.abs().max().item<double>() / 448)));
  return (sum / scale).to(at::kFloat8_e4m3fn).to(at::kFloat) * scale;
}

void add(Kept& kept, const at::Tensor& gradient, bool by_calls) {
  if (!by_calls) return add_to_fp8_gradient_on_cpu(gradient, kept.codes, kept.scale);
  // What it works in holds anything.
  const at::Tensor scratch = at::full({ScaledScratch{gradient.numel()}.size()}, std::nan(""), at::kFloat);
  add_to_fp8_gradient_by_calls(gradient, kept.codes, kept.scale, scratch);
}

/// Of many sizes, all of them within fp16.
at::Tensor random(std::int64_t elements) { return at::randn({elements}) * at::exp2(at::randn({elements}) * 2); }

Job job_with(const std::string& sharding, int ranks, const std::vector<std::pair<std::string, std::string>>& fields) {
  Job job = testing::small_job(sharding, ranks);
  for (const auto& [field, value] : fields) job_field_named(field).set(job, value);
  return job;
}

/// Losses differ from those with whole gradients, but by little: in small steps, in which a difference doesn't grow.
void check_trains(Job job, const char* dtype = "fp8") {
  constexpr int kSteps = 3;
  TrainOptions options = testing::options_of(kSteps);
  options.optimizer.learning_rate = 1e-3;
  CAPTURE(job_as_flags(job, Job{}));
  const testing::Trained whole = testing::train(job, kSteps, options);
  job_field_named("gradient_dtype").set(job, dtype);
  const testing::Trained kept = testing::train(job, kSteps, options);
  CHECK(kept.norms != whole.norms);
  CHECK(kept.losses.front() == whole.losses.front());
  testing::check_close(kept.norms, whole.norms, 0.05);
  testing::check_close(kept.losses, whole.losses, 0.01);
}

}  // namespace

TEST_CASE("each addition is rounded once, with the scale of the largest sum") {
  at::manual_seed(1);
  for (const auto& [elements, dtype] :
       {std::pair{std::int64_t{1}, at::kFloat}, std::pair{std::int64_t{255}, at::kBFloat16},
        std::pair{std::int64_t{5000}, at::kFloat}, std::pair{std::int64_t{5000}, at::kHalf},
        std::pair{kBlockStatesChunk + 300, at::kFloat}}) {
    CAPTURE(elements);
    Kept by_loop(elements), by_calls(elements);
    at::Tensor expected = at::zeros({elements});
    for (int time = 0; time < 2; ++time) {
      const at::Tensor gradient = random(elements).to(dtype);
      add(by_loop, gradient, false);
      add(by_calls, gradient, true);
      expected = rounded(expected + gradient.to(at::kFloat));
      CHECK(at::equal(by_loop.values(), expected));
      CHECK(at::equal(by_loop.codes, by_calls.codes));
      CHECK(at::equal(by_loop.scale, by_calls.scale));
    }
  }
}

namespace {

void check_parts(std::int64_t each, std::int64_t ranks) {
  CAPTURE(each);
  CAPTURE(ranks);
  at::manual_seed(3);
  const at::Tensor gradient = random(each * ranks), list = at::zeros({ranks, 2});
  const at::Tensor scales = list.narrow(1, 1, 1);
  at::Tensor sum;
  for (const bool by_calls : {false, true}) {
    const at::Tensor scratch = at::full({ScaledScratch{each, ranks + 1}.size()}, std::nan(""), at::kFloat);
    const at::Tensor codes = at::zeros({each * ranks}, at::kByte);
    by_calls ? code_fp8_gradient_by_calls(gradient, codes, scales, scratch)
             : code_fp8_gradient_on_cpu(gradient, codes, scales);
    const at::Tensor parts = codes.view(at::kFloat8_e4m3fn).to(at::kFloat).view({ranks, each}) * scales;
    Kept kept(each);
    add(kept, random(each), false);
    at::Tensor expected = kept.values();
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      CHECK(at::equal(parts[rank], rounded(gradient.narrow(0, rank * each, each))));
      expected = expected + parts[rank];
    }
    const ScaledPart from{codes, scales}, to{kept.codes, kept.scale};
    by_calls ? add_fp8_parts_by_calls(from, to, scratch) : add_fp8_parts_on_cpu(from, to);
    CHECK(at::equal(kept.values(), rounded(expected)));
  }
}

}  // namespace

TEST_CASE("parts for each rank have a scale of their own, and those of all ranks are added and rounded once") {
  check_parts(700, 3);
  check_parts(1, 2);
  check_parts(kBlockStatesChunk / 4 + 300, 7);  // several chunks
}

TEST_CASE("sums over replicas are rounded once, parameter by parameter") {
  Unit unit;
  unit.fp8_gradients = 2;
  unit.fp8_gradient_elements = 1024;
  unit.trainable_elements = 1024;
  unit.parameters.resize(2);
  unit.parameters[0] = {.shard_elements = 300};
  unit.parameters[1] = {.shard_elements = 500, .shard_offset = 512};
  at::manual_seed(2);
  const UnitGradients all{at::zeros({3 * 1024}, at::kByte), at::zeros({3 * 2}), {}};
  std::array<at::Tensor, 2> expected{at::zeros({300}), at::zeros({500})};
  for (std::int64_t replica = 0; replica < 3; ++replica) {
    for (std::int64_t slot = 0; slot < 2; ++slot) {
      const UnitParameter& p = unit.parameters[static_cast<std::size_t>(slot)];
      Kept own(p.shard_elements);
      add(own, random(p.shard_elements), false);
      all.codes.narrow(0, replica * 1024 + p.shard_offset, p.shard_elements).copy_(own.codes);
      all.scales[replica * 2 + slot].copy_(own.scale[0]);
      expected.at(static_cast<std::size_t>(slot)).add_(own.values());
    }
  }
  for (const bool by_calls : {false, true}) {
    const UnitGradients sum{at::zeros({1024}, at::kByte), at::zeros({2}), {}};
    const at::Tensor scratch = at::full({ScaledScratch{500, 3}.size()}, std::nan(""), at::kFloat);
    by_calls ? sum_fp8_gradients_by_calls(unit, all, sum, scratch) : sum_fp8_gradients_on_cpu(unit, all, sum);
    const at::Tensor numbers = at::full({1024}, std::nan(""), at::kFloat);
    by_calls ? read_fp8_gradients_by_calls(unit, sum, numbers) : read_fp8_gradients_on_cpu(unit, sum, numbers);
    CHECK(at::equal(numbers.narrow(0, 0, 300), rounded(expected[0])));
    CHECK(at::equal(numbers.narrow(0, 512, 500), rounded(expected[1])));
    CHECK(numbers.narrow(0, 300, 212).abs().max().item<float>() == 0);
    CHECK(numbers.narrow(0, 1012, 12).abs().max().item<float>() == 0);
  }
}

TEST_CASE("zeros stay zero, and what overflowed is no finite number") {
  for (const bool by_calls : {false, true}) {
    Kept kept(300);
    add(kept, at::zeros({300}), by_calls);
    CHECK(kept.values().abs().max().item<float>() == 0);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      at::Tensor gradient = at::ones({300});
      gradient[7].fill_(bad);
      Kept spoiled(300);
      add(spoiled, gradient, by_calls);
      CHECK_FALSE(std::isfinite(spoiled.values()[7].item<float>()));
    }
  }
}

TEST_CASE("training with gradients in FP8 stays near that with whole ones, however the model is split") {
  check_trains(job_with("no-shard", 1, {{"wrap", "size:18000"}, {"freeze", "layers:0"}}));
  check_trains(job_with("no-shard", 2, {{"bucket_bytes", "2000"}}));
  check_trains(job_with("full-shard", 2, {{"wrap", "none"}, {"accumulate", "unsharded"}, {"reduce_finish", "end"}}));
  check_trains(job_with("shard-grad-op", 2, {{"precision", "bf16-mixed"}, {"checkpointing", "full"}}));
  check_trains(job_with("full-shard", 1, {{"precision", "bf16-pure"}, {"loss", "chunked:3"}}));
  check_trains(job_with("full-shard", 2, {{"reduce_finish", "end"}}), "fp8-sent");
  check_trains(job_with("shard-grad-op", 4, {{"accumulate", "unsharded"}, {"precision", "bf16-mixed"}}), "fp8-sent");
}

TEST_CASE("a step whose gradients overflow in FP8 is skipped") {
  Job job = job_with("full-shard", 2, {{"precision", "fp16-mixed"}, {"gradient_dtype", "fp8"}});
  job.loss_scale = DynamicLossScale{.first = 0x1p40};
  const std::vector<StepResult> steps = testing::results(job, 2);
  CHECK(steps.front().skipped);
}

TEST_CASE("every optimizer reads them, at the end of a step or within backward") {
  for (const OptimizerName& row : optimizer_names()) {
    const Job job = job_with(
        "full-shard", 2, {{"precision", "bf16-pure"}, {"optimizer", std::string(row.name)}, {"gradient_dtype", "fp8"}});
    CAPTURE(row.name);
    testing::check_updated_alike(job);
  }
}

}  // namespace vramfit
