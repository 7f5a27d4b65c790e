// Small jobs of a small llama on ranks that are threads, for the tests of training.
#pragma once

#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "estimator/rank_estimate.h"
#include "executor/checkpoint/weights.h"
#include "executor/meter/arena.h"
#include "executor/training/program_to_train.h"
#include "executor/training/trainer.h"
#include "job/loss/loss_options.h"
#include "job/sharding/sharding.h"
#include "tests/executor/training/thread_ranks_torch.h"
#include "tests/support/config_file.h"

namespace vramfit::testing {

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

inline Job small_job(const std::string& sharding, int ranks) {
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

inline Device cpu_device() {
  Device device;
  device.kind = DeviceKind::cpu;
  device.name = "cpu";
  return device;
}

inline TrainOptions options_of(std::int64_t steps) {
  TrainOptions options;
  options.steps = steps;
  options.optimizer.learning_rate = 1e-2;
  options.clip = 0.5;
  return options;
}

/// Trains a model of tests/models by `job` from random weights, on ranks that are threads.
class SmallTraining {
 public:
  SmallTraining(const std::string& model, const Job& job, const TrainOptions& options)
      : spec_(small_model(model)),
        graph_(build_graph(spec_, loss_options(job))),
        data_(spec_.vocab_size, job.sequence),
        job_(job),
        options_(options) {}

  /// All ranks of the job at once.
  void on_ranks(const std::function<void(ProcessGroups&)>& body) const {
    const std::int64_t shards = sharding_named(job_.sharding).parameters ? job_.mesh.shard : 1;
    run_rank_threads(static_cast<int>(data_ranks(job_)), shards, body, reshard_ranks(job_));
  }

  program::Program program_of(ProcessGroups& groups) const {
    return program_to_train({.graph = graph_,
                             .job = job_,
                             .device = device_,
                             .coords = {.replicate = groups.replicate().rank(), .shard = groups.shard().rank()},
                             .run = {.clip = options_.clip > 0, .saves = saves, .saves_full = saves}});
  }

  /// One rank: `body` has its trainer, loaded. `changed`: run instead of the rank's own program.
  void with_trainer(ProcessGroups& groups, const std::function<void(Trainer&)>& body,
                    const program::Program* changed = nullptr) const {
    const auto weights = random_weights(1);
    const program::Program own = changed == nullptr ? program_of(groups) : program::Program{};
    const std::shared_ptr<Arena> memory = opens_arena ? opens_arena(changed == nullptr ? own : *changed) : nullptr;
    Trainer trainer({.graph = graph_,
                     .job = job_,
                     .device = device_,
                     .groups = groups,
                     .weights = *weights,
                     .data = data_,
                     .lowered = changed == nullptr ? own : *changed,
                     .options = options_,
                     .dumps = {},
                     .arena = memory.get()});
    trainer.load();
    body(trainer);
  }

  bool saves = false;                                                          // whether programs can save
  std::function<std::shared_ptr<Arena>(const program::Program&)> opens_arena;  // of a rank's program; empty: none

 private:
  ModelSpec spec_;
  Graph graph_;
  CountedRows data_;
  Job job_;
  Device device_ = cpu_device();
  TrainOptions options_;
};

/// What rank 0 says of each of `steps` steps on ranks that are threads; all say the same.
inline std::vector<StepResult> results(const Job& job, int steps, const TrainOptions& options) {
  const SmallTraining training("llama", job, options);
  std::vector<std::vector<StepResult>> of_rank(static_cast<std::size_t>(data_ranks(job)));
  training.on_ranks([&](ProcessGroups& groups) {
    auto& own = of_rank[static_cast<std::size_t>(groups.world().rank())];
    training.with_trainer(groups, [&](Trainer& trainer) {
      for (int step = 1; step <= steps; ++step) own.push_back(trainer.step(step));
    });
  });
  for (const std::vector<StepResult>& own : of_rank) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      CHECK(own[i].skipped == of_rank[0][i].skipped);
      CHECK(own[i].loss_scale == of_rank[0][i].loss_scale);
    }
  }
  return of_rank.front();
}

inline std::vector<StepResult> results(const Job& job, int steps) { return results(job, steps, options_of(steps)); }

/// What `steps` steps came to.
struct Trained {
  std::vector<double> losses, norms;
};

inline Trained train(const Job& job, int steps, const TrainOptions& options) {
  Trained result;
  for (const StepResult& step : results(job, steps, options)) {
    result.losses.push_back(step.loss);
    result.norms.push_back(step.gradient_norm);
  }
  return result;
}

inline Trained train(const Job& job, int steps) { return train(job, steps, options_of(steps)); }

inline std::vector<double> losses(const Job& job, int steps) { return train(job, steps).losses; }

/// That updates within backward give what those at the end of a step do, and do something.
inline void check_updated_alike(Job job) {
  job.accumulation = 1;
  job.global_batch = 4;
  TrainOptions options = options_of(2);
  options.clip = 0;
  const std::vector<double> at_end = train(job, 2, options).losses;
  job.optimizer_in_backward = true;
  CHECK(train(job, 2, options).losses == at_end);
  options.optimizer.learning_rate = 1e-12;
  CHECK(train(job, 2, options).losses != at_end);
}

inline void check_close(const std::vector<double>& values, const std::vector<double>& expected, double tolerance) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CAPTURE(values[i]);
    const double relative_difference = std::abs(values[i] - expected[i]) / expected[i];
    CHECK(relative_difference < tolerance);
  }
}

}  // namespace vramfit::testing
