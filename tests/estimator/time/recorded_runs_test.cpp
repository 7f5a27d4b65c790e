#include "estimator/time/recorded_runs.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "estimator/time/step_timer.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "program/stages/adapters.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

struct World {
  ModelSpec spec = testing::small_model("llama");
  Cluster cluster = parse_cluster("2xH100-80GB");
  Job job = [this] {
    std::vector<std::string> notes;
    return resolve_job(unresolved_job(), spec, cluster, notes);
  }();
  Graph graph = training_graph(spec, job);

  double predicted(const Efficiency& efficiency) const {
    return step_time(graph, job, cluster, efficiency).step_seconds;
  }

  RunRecord run(std::vector<double> step_seconds) const {
    RunRecord run;
    run.model_name = spec.name;
    run.job = job;
    run.cluster = cluster;
    run.device = "cuda";
    for (const Parameter& parameter : graph.parameters) run.parameters += element_count(parameter);
    run.step_seconds = std::move(step_seconds);
    return run;
  }

  double share(const RunRecord& run) const {
    return step_share_of_run(run, spec, cluster, efficiency_of(cluster), "run.json");
  }
};

}  // namespace

TEST_CASE("the first step is left out, and the others count by their median") {
  const World world;
  CHECK(measured_step_seconds(world.run({9, 2, 1, 3})) == 2);
  CHECK(measured_step_seconds(world.run({9})) == 0);
}

TEST_CASE("with the figure of a run its step is predicted to take what it took") {
  const World world;
  Efficiency efficiency = efficiency_of(world.cluster);
  efficiency.step_share = 0.01;  // kernels so slow that launches don't matter
  const double measured = world.predicted(efficiency);
  const double share = world.share(world.run({9, measured, measured}));
  CHECK(share == doctest::Approx(0.01).epsilon(1e-6));
  efficiency.step_share = share;
  CHECK(world.predicted(efficiency) == doctest::Approx(measured).epsilon(1e-6));
}

TEST_CASE("runs that say nothing of this card are refused by name") {
  const World world;
  const auto message = [&](RunRecord run) -> std::string {
    try {
      (void)world.share(run);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  RunRecord run = world.run({1, 1});
  CHECK(message(run).empty());
  run.device = "phantom";
  CHECK(message(run) == "run.json: was rehearsed on phantom GPUs, on which nothing takes time");
  run.device = "cpu";
  CHECK(message(run) == "run.json: ran on cpu, --gpus asks for 2xH100-80GB");
  run = world.run({1, 1});
  run.cluster = parse_cluster("2xA100-40GB");
  CHECK(message(run) == "run.json: ran on A100-40GB, --gpus asks for H100-80GB");
  CHECK(message(world.run({1})) == "run.json: has no step after the first, which takes longer than others");
  CHECK(message(world.run({1, -1})) == "run.json: step_seconds: are not positive");
  run = world.run({1, 1});
  run.parameters += 1;
  CHECK(message(run).starts_with("run.json: its model"));
}

}  // namespace vramfit
