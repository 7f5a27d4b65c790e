#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "executor/sharding/unit_state_torch.h"
#include "tests/executor/cpu_units_torch.h"
#include "tests/executor/training/thread_ranks_torch.h"

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
    if (reshard_groups > 0) job.reshard = ReshardGroups{reshard_groups};
    layout = lay_out_units(graph, job);
  }
  testing::UnitPrograms programs(ProcessGroups& groups) const { return {graph, job, layout, groups}; }
};

/// Two micro-batches of gradients rank + 1, reduced; the rank's slice of the first parameter's gradient.
at::Tensor reduced_twice(testing::UnitPrograms& programs, const Collectives& group) {
  program::UnitLowering& unit = programs.units[0];
  programs.load();
  struct MicroBatch {
    std::size_t begin = 0, end = 0;
    int home = -1;
    bool adds = false;
  };
  std::vector<MicroBatch> micro_batches(2);
  for (MicroBatch& m : micro_batches) {
    const program::UnitLowering::Home home = unit.home(OpKind::linear, {.parameter = 0});
    if (home.is_new) {
      programs.writer.allocate(home.held);
      programs.writer.run({.kernel = program::Kernel::zero}, {{&home.held, program::How::write}});
    }
    m.home = home.held.buffer();
    m.adds = home.adds;
    m.begin = programs.end_section();
    unit.reduce();
    unit.finish();
    m.end = programs.end_section();
  }
  unit.update({}, {});
  Numbers numbers;
  programs.begin(numbers);
  for (const MicroBatch& m : micro_batches) {
    programs.run(m.begin);
    at::Tensor gradient = programs.tensor(m.home).narrow(0, 0, 15);
    const auto value = static_cast<float>(group.rank() + 1);
    m.adds ? gradient.add_(value) : gradient.fill_(value);
    programs.run(m.end);
  }
  const UnitState state = programs.state(0);
  return UnitState::slice(state.gradients(), state.unit().parameters[0]);
}

}  // namespace

TEST_CASE("a gathered unit holds every parameter whole, whatever the number of ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const World world(ranks);
    std::mutex mutex;
    testing::run_rank_threads(ranks, ranks, [&](ProcessGroups& groups) {
      testing::UnitPrograms programs = world.programs(groups);
      programs.load();
      programs.units[0].wait();
      const std::size_t all = programs.end_section();
      Numbers numbers;
      programs.begin(numbers);
      programs.run(all);
      const program::Held& weights = programs.units[0].weights();
      const at::Tensor a = programs.weight(weights, 0), b = programs.weight(weights, 1);
      const std::scoped_lock lock(mutex);
      CHECK(a.sizes().vec() == std::vector<std::int64_t>{5, 3});
      for (std::int64_t i = 0; i < 15; ++i) CHECK(a.view({15})[i].item<float>() == static_cast<float>(10 * i + 5));
      for (std::int64_t i = 0; i < 7; ++i) CHECK(b[i].item<float>() == static_cast<float>(10 * i + 7));
    });
  }
}

TEST_CASE(
    "a gather casts each storage of a unit to the compute dtype, whatever dtype its parameters have between steps") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    World world(ranks, "bf16-mixed");
    world.job.freeze = {"b.bias"};
    world.job.frozen_dtype = Dtype::f16;
    world.layout = lay_out_units(world.graph, world.job);
    std::mutex mutex;
    testing::run_rank_threads(ranks, ranks, [&](ProcessGroups& groups) {
      testing::UnitPrograms programs = world.programs(groups);
      programs.load();
      programs.units[0].wait();
      const std::size_t all = programs.end_section();
      Numbers numbers;
      programs.begin(numbers);
      programs.run(all);
      const UnitState state = programs.state(0);
      const program::Held& weights = programs.units[0].weights();
      const at::Tensor a = programs.weight(weights, 0).view({15}), b = programs.weight(weights, 1);
      const std::scoped_lock lock(mutex);
      REQUIRE(state.shards().size() == 2);
      CHECK((state.shards()[0]->scalar_type() == at::kFloat));
      CHECK((state.shards()[1]->scalar_type() == at::kHalf));
      CHECK((b.scalar_type() == at::kBFloat16));
      for (std::int64_t i = 0; i < 15; ++i) CHECK(a[i].item<float>() == static_cast<float>(10 * i + 5));
      for (std::int64_t i = 0; i < 7; ++i) CHECK(b[i].item<float>() == static_cast<float>(10 * i + 7));
    });
  }
}

TEST_CASE("a unit resharded to groups keeps a slice of what was gathered, and is gathered from the group's slices") {
  for (const char* precision : {"fp32", "bf16-mixed"}) {
    const World world(4, precision, 2);
    REQUIRE(world.layout.reshard_ranks == 2);
    std::mutex mutex;
    const auto body = [&](ProcessGroups& groups) {
      testing::UnitPrograms programs = world.programs(groups);
      program::UnitLowering& unit = programs.units[0];
      programs.load();
      unit.wait();
      const program::Held first = unit.weights();
      const std::size_t gathered = programs.end_section();
      unit.reshard();
      const bool gone = !unit.weights();
      const std::size_t resharded = programs.end_section();
      unit.wait();
      const program::Held second = unit.weights();
      const std::size_t from_kept = programs.end_section();
      unit.release();
      unit.wait();
      const std::size_t again = programs.end_section();
      Numbers numbers;
      programs.begin(numbers);
      programs.run(gathered);
      const at::Tensor before = programs.weight(first, 0).clone();
      programs.run(resharded);
      // Each group's slices are its own: one that gathered from the shards would see what was written to them since.
      at::Tensor rows = programs.state(0).rows(world.layout.units[0].parameters[0]);
      rows.fill_(-1);
      programs.run(from_kept);
      const bool from_slices = programs.weight(second, 0).equal(before);
      programs.run(again);
      const bool from_shards = programs.weight(unit.weights(), 0).eq(-1).all().item<bool>();
      const std::scoped_lock lock(mutex);
      CHECK(gone);
      CHECK(from_slices);
      CHECK(from_shards);
    };
    testing::run_rank_threads(4, 4, body, 2);
  }
}

TEST_CASE("padding rows of a shard are zero") {
  const World world(4);
  std::mutex mutex;
  testing::run_rank_threads(4, 4, [&](ProcessGroups& groups) {
    testing::UnitPrograms programs = world.programs(groups);
    programs.load();
    const std::size_t all = programs.end_section();
    Numbers numbers;
    programs.begin(numbers);
    programs.run(all);
    const at::Tensor rows = programs.state(0).rows(world.layout.units[0].parameters[0]);
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
      testing::run_rank_threads(ranks, ranks, [&](ProcessGroups& groups) {
        testing::UnitPrograms programs = world.programs(groups);
        const at::Tensor gradient = reduced_twice(programs, groups.shard());
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
  testing::run_rank_threads(2, 2, [&](ProcessGroups& groups) {
    testing::UnitPrograms programs = world.programs(groups);
    const ParameterUse top{.parameter = 0, .first = 0, .count = 2}, rest{.parameter = 0, .first = 2, .count = 3};
    const program::UnitLowering::Home first = programs.units[0].home(OpKind::linear, top);
    const program::UnitLowering::Home second = programs.units[0].home(OpKind::linear, rest);
    const program::UnitLowering::Home again = programs.units[0].home(OpKind::linear, top);
    const std::scoped_lock lock(mutex);
    CHECK(first.is_new);
    CHECK_FALSE(first.adds);
    CHECK_FALSE(second.is_new);
    CHECK_FALSE(second.adds);
    CHECK(again.adds);
  });
}

}  // namespace vramfit
