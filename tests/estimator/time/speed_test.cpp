#include "estimator/time/speed.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "program/make_program.h"
#include "program/model_flops.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

struct World {
  Cluster cluster;
  Job job;
  Graph graph;
  Efficiency efficiency;
  Speed speed(const RunEffects& run = {}) const {
    const program::Program program = program::make_program(
        {.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .run = run, .labels = false});
    return speed_of(program, graph, job, cluster, efficiency);
  }
};

World world_of(const std::string& gpus, const std::vector<std::pair<std::string, std::string>>& fields = {}) {
  const ModelSpec spec = testing::llama_8b();
  World world{.cluster = parse_cluster(gpus), .job = unresolved_job(), .graph = {}, .efficiency = {}};
  for (const auto& [name, value] : fields) set_job_field(world.job, job_field_named(name), value, name);
  std::vector<std::string> notes;
  world.job = resolve_job(world.job, spec, world.cluster, notes);
  world.graph = training_graph(spec, world.job);
  world.efficiency = efficiency_of(world.cluster);
  return world;
}

}  // namespace

TEST_CASE("a speed is that of its step, for all ranks and for one, with a range around it") {
  World world = world_of("8xH100-80GB", {{"seq_len", "2048"}, {"micro_batch", "2"}, {"grad_accum", "3"}});
  world.efficiency.step_least = 0.5;
  world.efficiency.step_most = 1.5;
  const Speed speed = world.speed();
  const double step = speed.time.step_seconds;
  CHECK(speed.least_step_seconds == 0.5 * step);
  CHECK(speed.most_step_seconds == 1.5 * step);
  CHECK(speed.tokens_per_second == doctest::Approx(8 * 2 * 3 * 2048 / step));
  CHECK(speed.tokens_per_second_per_card == doctest::Approx(2 * 3 * 2048 / step));
  const double flops = training_flops(world.graph, trainable_parameters(world.graph, world.job),
                                      {world.job.micro_batch, world.job.sequence});
  CHECK(speed.model_flops_utilization == doctest::Approx(3 * flops / (step * world.cluster.card.bf16_flops)));
}

TEST_CASE("frozen weights count for less in whoever's job they are") {
  const auto utilization = [](std::vector<std::pair<std::string, std::string>> fields, const char* method) {
    fields.emplace_back("method", method);
    const World world = world_of("1xH200", fields);
    return model_flops_utilization(world.graph, world.job, world.cluster.card, 1);
  };
  const std::vector<std::pair<std::string, std::string>> trainer{{"runtime", "pytorch"}, {"modeling", "transformers"}};
  CHECK(utilization(trainer, "full") == doctest::Approx(utilization({}, "full")));
  CHECK(utilization(trainer, "lora") == doctest::Approx(utilization({}, "lora")));
  // Forward and the gradients of inputs remain, of attention all; adapters add little.
  const double share = utilization(trainer, "lora") / utilization(trainer, "full");
  CHECK(share > 0.66);
  CHECK(share < 0.75);
}

TEST_CASE("exposed communication is what collectives lengthen a step by: nothing alone, more over a slow network") {
  CHECK(world_of("1xH100-80GB").speed().exposed_communication_seconds == 0);
  World world = world_of("2x8xH100-80GB");
  const Speed fast = world.speed();
  CHECK(fast.exposed_communication_seconds > 0);
  CHECK(fast.exposed_communication_seconds <= fast.time.communication_seconds);
  world.cluster.network_bandwidth /= 10;
  const Speed slow = world.speed();
  CHECK(slow.exposed_communication_seconds > fast.exposed_communication_seconds);
  // What is left without collectives doesn't depend on the network.
  CHECK(slow.time.step_seconds - slow.exposed_communication_seconds ==
        doctest::Approx(fast.time.step_seconds - fast.exposed_communication_seconds));
}

TEST_CASE("a step that doesn't clip gradients is faster, and one after which a checkpoint is saved is as fast") {
  const World world = world_of("8xH100-80GB");
  const double step = world.speed().time.step_seconds;
  CHECK(world.speed({.clip = false}).time.step_seconds < step);
  CHECK(world.speed({.saves = true}).time.step_seconds == step);
}

TEST_CASE("kernels in a step are slower than alone by one figure, which leaves launches and collectives as they are") {
  World world = world_of("8xH100-80GB");
  world.efficiency.step_share = 1;
  const Speed alone = world.speed();
  world.efficiency.step_share = 0.5;
  const Speed step = world.speed();
  CHECK(step.time.compute_seconds == doctest::Approx(2 * alone.time.compute_seconds));
  CHECK(step.time.communication_seconds == alone.time.communication_seconds);
}

TEST_CASE(
    "gradients and parameters that leave a 16 GB card hide most of their copies, and the CPU's part is told apart") {
  const std::vector<std::pair<std::string, std::string>> fields{
      {"precision", "bf16-pure"}, {"checkpointing", "full"}, {"seq_len", "2048"}};
  CHECK(world_of("1x16GB", fields).speed().exposed_copy_seconds == 0);
  for (const char* kind : {"optimizer", "optimizer+gradients"}) {
    CAPTURE(kind);
    std::vector<std::pair<std::string, std::string>> offloaded = fields;
    offloaded.emplace_back("offload", kind);
    World world = world_of("1x16GB", offloaded);
    const Speed speed = world.speed();
    CHECK(speed.exposed_copy_seconds > 0);
    CHECK(speed.exposed_copy_seconds < 0.15 * speed.time.step_seconds);
    CHECK(speed.exposed_host_seconds > 0);
    // The range also has what host memory may be off by.
    const double range = world.efficiency.host_memory_range, step = speed.time.step_seconds;
    const double slow_host = step + 0.9 * speed.exposed_host_seconds * (range - 1);
    CHECK(range > 1);
    CHECK(speed.most_step_seconds > world.efficiency.step_most * slow_host);
    CHECK(speed.least_step_seconds < world.efficiency.step_least * step);
    world.efficiency.host_memory_bandwidth /= 10;
    const Speed slow = world.speed();
    CHECK(slow.exposed_host_seconds > 5 * speed.exposed_host_seconds);
  }
}

}  // namespace vramfit
