#include <doctest/doctest.h>
#include <fmt/format.h>

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "estimator/count.h"
#include "estimator/ledger_diff.h"
#include "estimator/rank_estimate.h"
#include "estimator/sharding.h"
#include "executor/checkpoint/weights.h"
#include "executor/meter/meter.h"
#include "executor/trainer.h"
#include "tests/support/config_file.h"

using namespace vramfit;  // NOLINT(google-build-using-namespace): the test's only subject

namespace {

/// Tokens that follow from their position, so that every mesh sees the same rows.
class CountedRows final : public Dataset {
 public:
  CountedRows(std::int64_t vocab, std::int64_t sequence) : vocab_(vocab), sequence_(sequence) {}
  std::int64_t rows() const override { return std::numeric_limits<std::int64_t>::max(); }
  void row(std::int64_t index, std::span<std::int64_t> ids, std::span<std::int64_t> labels) const override {
    for (std::size_t t = 0; t < ids.size(); ++t) {
      ids[t] = token(index, static_cast<std::int64_t>(t));
      labels[t] = token(index, static_cast<std::int64_t>(t) + 1);
    }
  }
  std::int64_t label_tokens(std::int64_t /*index*/) const override { return sequence_; }

 private:
  std::int64_t token(std::int64_t row, std::int64_t position) const { return (row % 5 * 7 + position * 3) % vocab_; }
  std::int64_t vocab_, sequence_;
};

Job small_job(const std::string& sharding, int ranks) {
  Job job;
  job.precision = precision_named("fp32");
  job.sharding = sharding;
  const bool sharded = sharding_named(sharding).parameters;
  job.mesh = {.replicate = sharded ? 1 : ranks, .shard = sharded ? ranks : 1};
  job.sequence = 32;
  job.micro_batch = 4 / ranks;
  job.accumulation = 2;
  job.global_batch = 8;
  return job;
}

Device cpu_device() {
  Device device;
  device.kind = DeviceKind::cpu;
  device.name = "cpu";
  return device;
}

TrainOptions options_of(std::int64_t steps) {
  TrainOptions options;
  options.steps = steps;
  options.optimizer.learning_rate = 1e-2;
  options.clip = 0.5;
  return options;
}

/// What rank 0 says of each of `steps` steps on ranks that are threads; all say the same.
std::vector<StepResult> results(const Job& job, int steps) {
  const ModelSpec spec = testing::small_model("llama");
  const Graph graph = build_graph(spec, loss_options(job));
  const Device device = cpu_device();
  const CountedRows data(spec.vocab_size, job.sequence);
  std::vector<std::vector<StepResult>> of_rank(static_cast<std::size_t>(data_ranks(job)));
  const std::int64_t shards = sharding_named(job.sharding).parameters ? job.mesh.shard : 1;
  spawn_ranks(static_cast<int>(data_ranks(job)), shards, [&](ProcessGroups& groups) {
    const auto weights = random_weights(1);
    Trainer trainer({.graph = graph,
                     .job = job,
                     .device = device,
                     .groups = groups,
                     .weights = *weights,
                     .data = data,
                     .options = options_of(steps),
                     .dumps = {}});
    trainer.load();
    auto& own = of_rank[static_cast<std::size_t>(groups.world().rank())];
    for (int step = 1; step <= steps; ++step) own.push_back(trainer.step(step));
  });
  for (const std::vector<StepResult>& own : of_rank) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      CHECK(own[i].skipped == of_rank[0][i].skipped);
      CHECK(own[i].loss_scale == of_rank[0][i].loss_scale);
    }
  }
  return of_rank.front();
}

std::vector<double> losses(const Job& job, int steps) {
  std::vector<double> result;
  for (const StepResult& step : results(job, steps)) result.push_back(step.loss);
  return result;
}

/// The counted ledger of a one-rank job against what the meter saw.
LedgerDifference counted_against_measured(const Job& job, const std::string& model) {
  Meter::instance().install_cpu(Bytes{0});
  const Graph graph = build_graph(testing::small_model(model), loss_options(job));
  const Ledger counted = count(graph, job, cpu_device(), {}, {.clip = true, .steps = 2, .abbreviate = false});
  Meter::instance().reset();
  Meter::instance().record_events(true);
  const ModelSpec spec = testing::small_model(model);
  const CountedRows data(spec.vocab_size, job.sequence);
  const auto weights = random_weights(1);
  const Device device = cpu_device();
  Ledger measured;
  spawn_ranks(1, 1, [&](ProcessGroups& groups) {
    Trainer trainer({.graph = graph,
                     .job = job,
                     .device = device,
                     .groups = groups,
                     .weights = *weights,
                     .data = data,
                     .options = options_of(2),
                     .dumps = {}});
    trainer.load();
    for (int step = 1; step <= 2; ++step) trainer.step(step);
    measured = Meter::instance().take_ledger();
  });
  Meter::instance().record_events(false);
  return compare_ledgers(counted, measured);
}

}  // namespace

TEST_CASE("training a small llama makes its loss fall") {
  const std::vector<double> loss = losses(small_job("no-shard", 1), 16);
  CHECK(loss.front() == doctest::Approx(std::log(307.0)).epsilon(0.05));
  CHECK(loss.back() < 0.9 * loss.front());
}

TEST_CASE("every sharding and number of ranks gives the losses of one rank") {
  const std::vector<double> alone = losses(small_job("no-shard", 1), 4);
  for (const std::string sharding : {"no-shard", "shard-grad-op", "full-shard"}) {
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(sharding);
      CAPTURE(ranks);
      const std::vector<double> loss = losses(small_job(sharding, ranks), 4);
      REQUIRE(loss.size() == alone.size());
      for (std::size_t i = 0; i < loss.size(); ++i) {
        CAPTURE(i);
        const double relative_difference = std::abs(loss[i] - alone[i]) / alone[i];
        CHECK(relative_difference < 1e-6);
      }
    }
  }
}

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
    job.loss_scale = {LossScale::Kind::dynamic, 0x1p60, 2000};
    const std::vector<StepResult> skipping = results(job, 3);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(skipping[i].skipped);
      CHECK(skipping[i].loss_scale == std::ldexp(1.0, 59 - static_cast<int>(i)));
    }
    job.loss_scale = {LossScale::Kind::dynamic, 1024, 2};
    const std::vector<StepResult> growing = results(job, 3);
    CHECK_FALSE((growing[0].skipped || growing[1].skipped || growing[2].skipped));
    CHECK(growing[2].loss_scale == 2048);
    CHECK(skipping[0].loss == growing[0].loss);
    CHECK(skipping[2].loss != growing[2].loss);
    job.loss_scale = {LossScale::Kind::fixed, 0x1p60, 1};
    CHECK(results(job, 3)[2].loss == skipping[2].loss);
  }
}

TEST_CASE("gradients and their norm don't depend on the loss scale") {
  Job job = small_job("full-shard", 2);
  job.loss_scale.kind = LossScale::Kind::none;
  const std::vector<StepResult> plain = results(job, 3);
  for (const double scale : {1024.0, 1.0 / 64}) {
    job.loss_scale = {LossScale::Kind::fixed, scale, 1};
    const std::vector<StepResult> scaled = results(job, 3);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      CHECK(scaled[i].gradient_norm == doctest::Approx(plain[i].gradient_norm).epsilon(1e-5));
      CHECK(std::abs(scaled[i].loss - plain[i].loss) < 1e-6 * plain[i].loss);
    }
  }
}

TEST_CASE("what a run allocates is what was counted, event by event") {
  for (const std::string model : {"llama", "gpt2"}) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
      for (const LossKind loss : {LossKind::full, LossKind::chunked}) {
        for (const std::string precision : {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed"}) {
          Job job = small_job("full-shard", 1);
          job.checkpointing = checkpointing;
          job.loss = loss;
          job.precision = precision_named(precision);
          CAPTURE(model);
          CAPTURE(static_cast<int>(checkpointing));
          CAPTURE(static_cast<int>(loss));
          CAPTURE(precision);
          const LedgerDifference difference = counted_against_measured(job, model);
          CHECK_MESSAGE(difference.equal, difference.first);
          CHECK(difference.compared > 100);
        }
      }
    }
  }
}
