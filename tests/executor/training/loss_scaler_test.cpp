#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "executor/training/loss_scaler_torch.h"

using namespace vramfit;  // NOLINT(google-build-using-namespace): the test's only subject

namespace {

Job job_with(LossScale scale) {
  Job job;
  job.precision = precision_named("fp16-mixed");
  job.loss_scale = scale;
  return job;
}

LossScaler::Tensors tensors() {
  return {at::empty({1}, at::kFloat), at::empty({1}, at::kInt), at::empty({1}, at::kFloat)};
}

/// The scale after each of a row of steps, which overflow where `norms` says so.
std::vector<double> scales_after(LossScaler& scaler, const LossScaler::Tensors& held,
                                 const std::vector<double>& norms) {
  std::vector<double> scales;
  for (const double norm : norms) {
    scaler.check_on_host(norm);
    scaler.update();
    CHECK((held.found_inf.item<float>() != 0) == !std::isfinite(norm));
    scales.push_back(held.scale.item<double>());
  }
  return scales;
}

}  // namespace

TEST_CASE("a dynamic scale is halved by an overflow and doubled by so many steps without one") {
  LossScaler scaler(job_with(DynamicLossScale{1024, 3}));
  const LossScaler::Tensors held = tensors();
  scaler.load(held, nullptr);
  CHECK(scaler.check_on_host(1) == 1024);
  CHECK(scales_after(scaler, held, {1, 2, 3, 4, 5, INFINITY, 1, 1, NAN, 1, 1, 1}) ==
        std::vector<double>{1024, 1024, 2048, 2048, 2048, 1024, 1024, 1024, 512, 512, 512, 1024});
}

TEST_CASE("the device's way to find an overflow is the host's") {
  LossScaler scaler(job_with(DynamicLossScale{8, 2000}));
  const LossScaler::Tensors held = tensors();
  scaler.load(held, nullptr);
  for (const double value : {0.0, 3.5, 1e38, double{INFINITY}, double{NAN}}) {
    at::Tensor norm = at::full({1}, value, at::kFloat);
    scaler.check_on_device(norm);
    CHECK((held.found_inf.item<float>() != 0) == !std::isfinite(value));
    if (std::isfinite(value)) CHECK(norm.item<float>() == static_cast<float>(value) / 8);
  }
}

TEST_CASE("a fixed scale stays, and without one nothing is found") {
  LossScaler fixed(job_with(FixedLossScale{128}));
  const LossScaler::Tensors held = tensors();
  fixed.load(held, nullptr);
  CHECK(scales_after(fixed, held, {1, INFINITY, 1}) == std::vector<double>{128, 128, 128});
  LossScaler none(job_with(NoLossScale{}));
  CHECK(none.check_on_host(INFINITY) == 1);
  CHECK(none.scale() == nullptr);
  CHECK(none.numbers().empty());
}

TEST_CASE("scale and growth tracker go on where a checkpoint left them") {
  const Job job = job_with(DynamicLossScale{1024, 3});
  LossScaler first(job), second(job);
  const LossScaler::Tensors held_by_first = tensors(), held_by_second = tensors();
  first.load(held_by_first, nullptr);
  scales_after(first, held_by_first, {1, INFINITY, 1, 1});
  const NamedNumbers saved = first.numbers();
  second.load(held_by_second, &saved);
  const std::vector<double> rest{1, 1, 1, 1};
  CHECK(scales_after(first, held_by_first, rest) == scales_after(second, held_by_second, rest));
  const NamedNumbers others{{"something", 1}};
  CHECK_THROWS_WITH_AS(second.load(tensors(), &others), doctest::Contains("loss scale"), ModelError);
}
