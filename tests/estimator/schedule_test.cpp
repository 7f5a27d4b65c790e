#include "estimator/schedules/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "model_specs/error.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

using testing::tiny_graph;

Job sharded_job() {
  Job job = testing::tiny_job();
  job.mesh.shard = 4;
  return job;
}

std::vector<Instruction> schedule_of(const Job& job, const Graph& graph) {
  const UnitLayout layout = lay_out_units(graph, job);
  return make_schedule({.job = job,
                        .graph = graph,
                        .layout = layout,
                        .segment_has_backward = std::vector<bool>(graph.segments.size(), true)});
}

std::ptrdiff_t count_of(const std::vector<Instruction>& schedule, Do what) {
  return std::ranges::count(schedule, what, &Instruction::what);
}

void check_balanced(const std::vector<Instruction>& instructions) {
  std::map<int, int> live, reducing;
  for (const Instruction& i : instructions) {
    if (i.what == Do::wait) live[i.unit] = 1;
    if (i.what == Do::release || i.what == Do::reshard) CHECK(live[i.unit]-- == 1);
    if (i.what == Do::reduce) CHECK(reducing[i.unit]++ == 0);
    if (i.what == Do::finish) CHECK(reducing[i.unit]-- == 1);
  }
  for (const auto& [unit, count] : live) CHECK(count == 0);
  for (const auto& [unit, count] : reducing) CHECK(count == 0);
}

}  // namespace

TEST_CASE("with prefetch depth 1 and every unit resharded at most two gathered units live at once") {
  Job job = sharded_job();
  job.reshard_head = true;
  for (BackwardPrefetch prefetch : {BackwardPrefetch::pre, BackwardPrefetch::post}) {
    job.backward_prefetch = prefetch;
    CHECK(peak_live_units(schedule_of(job, tiny_graph({.blocks = 6}))) == 2);
  }
}

TEST_CASE("without prefetch one gathered unit lives at a time") {
  Job job = sharded_job();
  job.reshard_head = true;
  job.forward_prefetch = 0;
  job.backward_prefetch = BackwardPrefetch::none;
  CHECK(peak_live_units(schedule_of(job, tiny_graph({.blocks = 6}))) == 1);
}

TEST_CASE("a tied weight keeps one gathered unit more") {
  Job job = sharded_job();
  job.reshard_head = true;
  CHECK(peak_live_units(schedule_of(job, tiny_graph({.blocks = 6, .tied = true}))) <= 3);
}

TEST_CASE("shard-grad-op holds every unit from its forward to its backward") {
  Job job = sharded_job();
  job.sharding = "shard-grad-op";
  const Graph graph = tiny_graph({.blocks = 5});
  CHECK(peak_live_units(schedule_of(job, graph)) == 6);  // all but the embedding, which backward does not read
}

TEST_CASE("resharded to groups, units are gathered from shards in forward and from the groups' slices in backward") {
  Job job = sharded_job();
  job.reshard = Reshard::groups;
  job.reshard_groups = 2;
  job.reshard_head = true;
  job.accumulation = 2;
  const auto schedule = schedule_of(job, tiny_graph({.blocks = 3}));
  // Three blocks and the head, twice; backward reads no embedding.
  CHECK(count_of(schedule, Do::reshard) == 8);
  CHECK(std::ranges::count_if(schedule, [](const Instruction& i) { return i.in_group; }) == 8);
  job.reshard_groups = 4;  // all shards: each rank has its slice anyway
  CHECK(count_of(schedule_of(job, tiny_graph({.blocks = 3})), Do::reshard) == 0);
}

TEST_CASE("a limit on gathers in flight holds back what the prefetch would issue") {
  Job job = sharded_job();
  job.forward_prefetch = 4;
  CHECK(peak_gathers_in_flight(schedule_of(job, tiny_graph({.blocks = 6}))) == 4);
  for (const std::int64_t limit : {1, 2, 3}) {
    job.prefetch_limit = limit;
    CHECK(peak_gathers_in_flight(schedule_of(job, tiny_graph({.blocks = 6}))) == limit);
  }
}

TEST_CASE("forward prefetch of K gathers K units ahead, and so many live besides the one in use") {
  Job job = sharded_job();
  job.reshard_head = true;
  for (const int depth : {0, 1, 2, 5}) {
    job.forward_prefetch = depth;
    job.backward_prefetch = depth == 0 ? BackwardPrefetch::none : BackwardPrefetch::post;
    CHECK(peak_live_units(schedule_of(job, tiny_graph({.blocks = 8}))) == depth + 1);
  }
}

TEST_CASE("one unit of all parameters is gathered once forward, and once backward unless it was kept") {
  Job job = sharded_job();
  job.wrap = Wrap::none;
  const Graph graph = tiny_graph({.blocks = 3});
  CHECK(count_of(schedule_of(job, graph), Do::issue) == 1);  // the root is kept by default
  job.reshard = Reshard::always;
  CHECK(count_of(schedule_of(job, graph), Do::issue) == 1);  // the head's unit over the loss
  job.reshard_head = true;
  CHECK(count_of(schedule_of(job, graph), Do::issue) == 2);
  CHECK(count_of(schedule_of(job, graph), Do::reduce) == 5);  // embedding, three blocks, head: each use on its own
}

TEST_CASE("every gathered unit is released and every reduction finished by the end of the step") {
  for (const char* sharding : {"no-shard", "shard-grad-op", "full-shard"}) {
    for (Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
      CAPTURE(sharding);
      Job job = sharded_job();
      job.sharding = sharding;
      job.checkpointing = checkpointing;
      job.accumulation = 3;
      check_balanced(schedule_of(job, tiny_graph({.tied = true})));
    }
  }
}

TEST_CASE("a unit is waited for before any pass that reads it, and not released before the pass ends") {
  const Graph graph = tiny_graph({.blocks = 3});
  const Job job = sharded_job();
  const UnitLayout layout = lay_out_units(graph, job);
  std::vector<bool> waited(layout.units.size(), false);
  for (const Instruction& i : schedule_of(job, graph)) {
    if (i.what == Do::wait) waited[static_cast<std::size_t>(i.unit)] = true;
    if (i.what == Do::release) waited[static_cast<std::size_t>(i.unit)] = false;
    if (i.what != Do::forward) continue;
    for (int unit : layout.units_of_segment[static_cast<std::size_t>(i.segment)])
      CHECK(waited[static_cast<std::size_t>(unit)]);
  }
}

TEST_CASE("full checkpointing recomputes each block once a micro-batch, and nothing else") {
  Job job = sharded_job();
  job.checkpointing = Checkpointing::full;
  job.accumulation = 2;
  CHECK(count_of(schedule_of(job, tiny_graph({.blocks = 3})), Do::recompute) == 6);
  job.checkpointing = Checkpointing::none;
  CHECK(count_of(schedule_of(job, tiny_graph({.blocks = 3})), Do::recompute) == 0);
}

TEST_CASE("nothing runs backward below the lowest trainable segment") {
  const Graph graph = tiny_graph({.blocks = 3});
  Job job = sharded_job();
  const UnitLayout layout = lay_out_units(graph, job);
  const auto schedule = make_schedule(
      {.job = job, .graph = graph, .layout = layout, .segment_has_backward = {false, false, false, true, true, true}});
  for (const Instruction& i : schedule) {
    if (i.what == Do::backward) CHECK(i.segment >= 3);
  }
}

TEST_CASE("a choice without rules is named, not ignored") {
  Job job = sharded_job();
  job.offload = {"params"};
  CHECK_THROWS_WITH_AS(schedule_of(job, tiny_graph()), "not modelled: --offload params", NotModelled);
}

}  // namespace vramfit
