#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "tests/executor/training/small_training_torch.h"

namespace vramfit::testing {

TEST_CASE("a loss scale under which gradients overflow is halved, and that step alone changes nothing, on every mesh") {
  struct MeshCase {
    const char* sharding;
    int ranks, replicas;
  };
  for (const MeshCase& mesh : {MeshCase{"no-shard", 1, 1}, MeshCase{"no-shard", 2, 2}, MeshCase{"full-shard", 4, 1},
                               MeshCase{"hybrid-shard", 4, 2}}) {
    CAPTURE(mesh.sharding);
    CAPTURE(mesh.ranks);
    Job job = small_job(mesh.sharding, mesh.ranks);
    job.mesh = {.replicate = mesh.replicas, .shard = mesh.ranks / mesh.replicas};
    job.precision = precision_named("fp16-mixed");
    job.loss_scale = DynamicLossScale{0x1p60, 2000};
    const std::vector<StepResult> skipping = results(job, 3);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(skipping[i].skipped);
      CHECK(skipping[i].loss_scale == std::ldexp(1.0, 59 - static_cast<int>(i)));
    }
    job.loss_scale = DynamicLossScale{1024, 2};
    const std::vector<StepResult> growing = results(job, 3);
    CHECK_FALSE((growing[0].skipped || growing[1].skipped || growing[2].skipped));
    CHECK(growing[2].loss_scale == 2048);
    CHECK(skipping[0].loss == growing[0].loss);
    CHECK(skipping[2].loss != growing[2].loss);
    job.loss_scale = FixedLossScale{0x1p60};
    CHECK(results(job, 3)[2].loss == skipping[2].loss);
  }
}

TEST_CASE("gradients and their norm don't depend on the loss scale") {
  Job job = small_job("full-shard", 2);
  job.loss_scale = NoLossScale{};
  const std::vector<StepResult> plain = results(job, 3);
  for (const double scale : {1024.0, 1.0 / 64}) {
    job.loss_scale = FixedLossScale{scale};
    const std::vector<StepResult> scaled = results(job, 3);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      CHECK(scaled[i].gradient_norm == doctest::Approx(plain[i].gradient_norm).epsilon(1e-5));
      CHECK(std::abs(scaled[i].loss - plain[i].loss) < 1e-6 * plain[i].loss);
    }
  }
}

}  // namespace vramfit::testing
