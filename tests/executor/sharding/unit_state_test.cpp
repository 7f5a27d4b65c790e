#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <mutex>
#include <vector>

#include "executor/sharding/unit_state_torch.h"
#include "tests/executor/cpu_units_torch.h"

namespace vramfit {

namespace {

/// Two parameters whose rows no number of ranks above one divides.
Graph odd_graph() {
  Graph graph;
  graph.parameters = {{.name = "a.weight", .shape = {5, 3}}, {.name = "b.bias", .shape = {7}}};
  Segment segment;
  segment.name = "layers.0";
  segment.values = {{.name = "x", .shape = {kTokens, fixed(3)}}, {.name = "y", .shape = {kTokens, fixed(5)}}};
  Op op;
  op.kind = OpKind::linear;
  op.name = "a";
  op.inputs = {0};
  op.parameters = {{0}, {1}};
  op.outputs = {1};
  segment.ops = {op};
  segment.output = 1;
  graph.segments = {segment};
  return graph;
}

/// Element i of a parameter is 10 i + its rows.
class Numbers final : public WeightSource {
 public:
  void read_rows(const Parameter& parameter, std::int64_t first_row, std::int64_t rows, at::Tensor& into) override {
    const std::int64_t width = element_count(parameter) / parameter.shape[0];
    for (std::int64_t i = 0; i < rows * width; ++i) {
      into[i].fill_(static_cast<double>(10 * (first_row * width + i) + parameter.shape[0]));
    }
  }
  std::string description() const override { return "numbers"; }
};

struct World {
  Graph graph = odd_graph();
  Job job;
  UnitLayout layout;
  explicit World(int ranks, const char* precision = "fp32", int reshard_groups = 0) {
    job.precision = precision_named(precision);
    job.mesh.shard = ranks;
    if (reshard_groups > 0) job.reshard = Reshard::groups;
    job.reshard_groups = reshard_groups;
    layout = lay_out_units(graph, job);
  }
  UnitState unit(ProcessGroups& groups) const {
    return {testing::context_on_cpu(graph, job, layout, groups), layout.units[0]};
  }
};

/// Two micro-batches of gradients rank + 1, reduced; the rank's slice of the first parameter's gradient.
at::Tensor reduced_twice(UnitState& unit, const Collectives& group) {
  Numbers numbers;
  unit.load(*each_reads(numbers, group));
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const GradientHome home = unit.gradient_home({.parameter = 0}, OpKind::linear, false);
    const auto value = static_cast<float>(group.rank() + 1);
    home.accumulate ? home.tensor.add_(value) : home.tensor.fill_(value);
    unit.reduce();
    unit.finish();
  }
  return UnitState::slice(unit.gradient_shard(), unit.unit().parameters[0]);
}

}  // namespace

TEST_CASE("a gathered unit holds every parameter whole, whatever the number of ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const World world(ranks);
    std::mutex mutex;
    spawn_ranks(ranks, ranks, [&](ProcessGroups& groups) {
      UnitState unit = world.unit(groups);
      Numbers numbers;
      unit.load(*each_reads(numbers, groups.shard()));
      unit.issue();
      unit.wait();
      const at::Tensor a = unit.view({.parameter = 0}, false), b = unit.view({.parameter = 1}, false);
      const std::scoped_lock lock(mutex);
      CHECK(a.sizes().vec() == std::vector<std::int64_t>{5, 3});
      for (std::int64_t i = 0; i < 15; ++i) CHECK(a.view({15})[i].item<float>() == static_cast<float>(10 * i + 5));
      for (std::int64_t i = 0; i < 7; ++i) CHECK(b[i].item<float>() == static_cast<float>(10 * i + 7));
      CHECK(unit.view({.parameter = 0, .first = 2, .count = 2}, false).size(0) == 2);
      CHECK(unit.view({.parameter = 0, .first = 1, .count = 2}, true).size(1) == 2);
    });
  }
}

TEST_CASE("a unit resharded to groups keeps a slice of what was gathered, and is gathered from the group's slices") {
  for (const char* precision : {"fp32", "bf16-mixed"}) {
    const World world(4, precision, 2);
    REQUIRE(world.layout.reshard_ranks == 2);
    std::mutex mutex;
    const auto body = [&](ProcessGroups& groups) {
      UnitState unit = world.unit(groups);
      Numbers numbers;
      unit.load(*each_reads(numbers, groups.shard()));
      unit.issue();
      unit.wait();
      const at::Tensor before = unit.view({.parameter = 0}, false).clone();
      unit.reshard();
      const bool gone = !unit.view({.parameter = 0}, false).defined();
      // Each group's slices are its own: one that gathered from the shards would see what was written to them since.
      at::Tensor rows = UnitState::slice(unit.shard(), world.layout.units[0].parameters[0]);
      rows.fill_(-1);
      unit.issue();
      unit.wait();
      const bool from_slices = unit.view({.parameter = 0}, false).equal(before);
      unit.release();
      unit.issue();
      unit.wait();
      const bool from_shards = unit.view({.parameter = 0}, false).eq(-1).all().item<bool>();
      const std::scoped_lock lock(mutex);
      CHECK(gone);
      CHECK(from_slices);
      CHECK(from_shards);
    };
    spawn_ranks(4, 4, body, 2);
  }
}

TEST_CASE("padding rows of a shard are zero") {
  const World world(4);
  std::mutex mutex;
  spawn_ranks(4, 4, [&](ProcessGroups& groups) {
    UnitState unit = world.unit(groups);
    Numbers numbers;
    unit.load(*each_reads(numbers, groups.shard()));
    const at::Tensor rows = UnitState::slice(unit.shard(), world.layout.units[0].parameters[0]);
    const std::scoped_lock lock(mutex);
    REQUIRE(rows.numel() == 6);  // 5 rows over 4 ranks: 2 each
    const int rank = groups.shard().rank();
    if (rank == 2) CHECK(rows[3].item<float>() == 0);
    if (rank == 3) CHECK(rows.abs().sum().item<float>() == 0);
  });
}

TEST_CASE("gradients of all ranks are summed into the shards, and a second reduction adds") {
  for (const char* precision : {"fp32", "bf16-mixed"}) {
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(std::string(precision));
      CAPTURE(ranks);
      const World world(ranks, precision);
      std::mutex mutex;
      spawn_ranks(ranks, ranks, [&](ProcessGroups& groups) {
        UnitState unit = world.unit(groups);
        const at::Tensor gradient = reduced_twice(unit, groups.shard());
        const std::int64_t mine = std::max<std::int64_t>(
            0, std::min<std::int64_t>(gradient.numel(), 15 - groups.shard().rank() * gradient.numel()));
        const std::scoped_lock lock(mutex);
        for (std::int64_t i = 0; i < gradient.numel(); ++i) {
          CHECK(gradient[i].item<float>() == (i < mine ? static_cast<float>(ranks * (ranks + 1)) : 0.0F));
        }
      });
    }
  }
}

TEST_CASE("slices of one packed parameter are written side by side, then added to") {
  const World world(2);
  std::mutex mutex;
  spawn_ranks(2, 2, [&](ProcessGroups& groups) {
    UnitState unit = world.unit(groups);
    Numbers numbers;
    unit.load(*each_reads(numbers, groups.shard()));
    const ParameterUse top{.parameter = 0, .first = 0, .count = 2}, rest{.parameter = 0, .first = 2, .count = 3};
    const GradientHome first = unit.gradient_home(top, OpKind::linear, false);
    first.tensor.fill_(1);
    const GradientHome second = unit.gradient_home(rest, OpKind::linear, false);
    second.tensor.fill_(2);
    const GradientHome again = unit.gradient_home(top, OpKind::linear, false);
    const std::scoped_lock lock(mutex);
    CHECK_FALSE(first.accumulate);
    CHECK_FALSE(second.accumulate);
    CHECK(again.accumulate);
    CHECK(again.tensor.sum().item<float>() == 6);
  });
}

}  // namespace vramfit
