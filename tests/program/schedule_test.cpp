#include "program/schedules/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

using testing::schedule_of;
using testing::tiny_graph;

Job sharded_job() {
  Job job = testing::tiny_job();
  job.mesh.shard = 4;
  return job;
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

/// The buckets of a step, by unit.
std::vector<std::vector<int>> buckets_of(const std::vector<Instruction>& schedule) {
  std::vector<std::vector<int>> buckets;
  for (const Instruction& i : schedule) {
    if (i.what == Do::sum_replicas) buckets.push_back(i.bucket);
  }
  return buckets;
}

Job replicated_job(const char* sharding, std::int64_t shards) {
  Job job = testing::tiny_job();
  job.sharding = sharding;
  job.mesh = {.replicate = 2, .shard = shards};
  return job;
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
  job.reshard = ReshardGroups{2};
  job.reshard_head = true;
  job.accumulation = 2;
  const auto schedule = schedule_of(job, tiny_graph({.blocks = 3}));
  // Three blocks and the head, twice; backward reads no embedding.
  CHECK(count_of(schedule, Do::reshard) == 8);
  CHECK(std::ranges::count_if(schedule, [](const Instruction& i) { return i.in_group; }) == 8);
  job.reshard = ReshardGroups{4};  // all shards: each rank has its slice anyway
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
  job.wrap = WrapNothing{};
  const Graph graph = tiny_graph({.blocks = 3});
  CHECK(count_of(schedule_of(job, graph), Do::issue) == 1);  // the root is kept by default
  job.reshard = ReshardAlways{};
  CHECK(count_of(schedule_of(job, graph), Do::issue) == 1);  // the head's unit over the loss
  job.reshard_head = true;
  CHECK(count_of(schedule_of(job, graph), Do::issue) == 2);
  CHECK(count_of(schedule_of(job, graph), Do::reduce) == 5);  // embedding, three blocks, head: each use on its own
}

TEST_CASE("every gathered unit is released and every reduction finished by the end of the step") {
  for (const char* sharding : {"no-shard", "shard-grad-op", "full-shard"}) {
    for (const Checkpointing& checkpointing : {Checkpointing{NoCheckpointing{}}, Checkpointing{FullCheckpointing{}}}) {
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
  job.checkpointing = FullCheckpointing{};
  job.accumulation = 2;
  CHECK(count_of(schedule_of(job, tiny_graph({.blocks = 3})), Do::recompute) == 6);
  job.checkpointing = NoCheckpointing{};
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

TEST_CASE("whole gradients are reduced in the last micro-batch alone") {
  Job job = sharded_job();
  job.accumulation = 3;
  const Graph graph = tiny_graph({.blocks = 2});
  CHECK(count_of(schedule_of(job, graph), Do::reduce) == 12);
  job.accumulate = Accumulate::unsharded;
  const auto schedule = schedule_of(job, graph);
  CHECK(count_of(schedule, Do::accumulate) == 8);
  CHECK(count_of(schedule, Do::reduce) == 4);
  for (const Instruction& i : schedule) {
    if (i.what == Do::reduce || i.what == Do::finish) CHECK(i.last);
    if (i.what == Do::accumulate) CHECK_FALSE(i.last);
  }
  job.sharding = "no-shard";  // its gradients are whole as they are
  CHECK(count_of(schedule_of(job, graph), Do::accumulate) == 0);
}

TEST_CASE("each unit is summed over replicas once a step, after its last finish and before the norm") {
  for (const bool tied : {false, true}) {
    for (const std::int64_t accumulation : {1, 3}) {
      for (Job job : {replicated_job("no-shard", 1), replicated_job("hybrid-shard", 2)}) {
        for (const std::int64_t bytes : {1, 100, 26214400}) {
          CAPTURE(job.sharding);
          CAPTURE(bytes);
          job.accumulation = accumulation;
          job.bucket_bytes = bytes;
          const Graph graph = tiny_graph({.blocks = 3, .tied = tied});
          const auto schedule = schedule_of(job, graph);
          std::map<int, int> finished_at, summed;
          int position = 0, clip_at = 0;
          for (const Instruction& i : schedule) {
            if (i.what == Do::finish) finished_at[i.unit] = position;
            if (i.what == Do::clip) clip_at = position;
            ++position;
          }
          position = 0;
          for (const Instruction& i : schedule) {
            for (const int unit : i.bucket) {
              CHECK(summed[unit]++ == 0);
              CHECK(finished_at[unit] < position);
              CHECK(position < clip_at);
            }
            ++position;
          }
          CHECK(summed.size() == lay_out_units(graph, job).units.size());
        }
      }
    }
  }
}

TEST_CASE("a bucket goes as soon as it is full, so that sums run while backward does") {
  Job job = replicated_job("no-shard", 1);
  const Graph graph = tiny_graph({.blocks = 3});  // embed, layers.0 to 2, head: units 0 to 4
  job.bucket_bytes = 1;
  const auto schedule = schedule_of(job, graph);
  CHECK(buckets_of(schedule) == std::vector<std::vector<int>>{{4}, {3}, {2}, {1}, {0}});
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].what == Do::sum_replicas) CHECK(schedule[i - 1].what == Do::finish);
  }
  job.bucket_bytes = 26214400;
  CHECK(buckets_of(schedule_of(job, graph)) == std::vector<std::vector<int>>{{4, 3, 2, 1, 0}});
}

TEST_CASE("the first bucket is full with 1 MiB, the others with what the job says") {
  Job job = replicated_job("no-shard", 1);
  const Graph graph =
      tiny_graph({.vocab = 600, .hidden = 512, .blocks = 4});  // layers are 1 MiB each, embed and head more
  job.bucket_bytes = 2 << 20;
  CHECK(buckets_of(schedule_of(job, graph)) == std::vector<std::vector<int>>{{5}, {4, 3}, {2, 1}, {0}});
}

TEST_CASE("nothing is summed where there are no replicas") {
  CHECK(buckets_of(schedule_of(sharded_job(), tiny_graph())).empty());
}

TEST_CASE("a choice without rules is named, not ignored") {
  Job job = sharded_job();
  job.offload = {"optimizer", "params"};
  CHECK_THROWS_WITH_AS(schedule_of(job, tiny_graph()),
                       "not modelled: --offload optimizer,params (params includes optimizer+gradients, which includes "
                       "optimizer: give one, and activations)",
                       NotModelled);
}

}  // namespace vramfit
