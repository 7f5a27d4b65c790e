#include "program/readers/fingerprint.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "program/lowering/lower.h"
#include "tests/support/tiny_graph.h"

namespace vramfit::program {

namespace {

Job sharded_job() {
  Job job = testing::tiny_job();
  job.mesh = {.replicate = 2, .shard = 2};
  job.sharding = "hybrid-shard";
  job.accumulation = 3;
  return job;
}

std::string fingerprint(const Job& job, const Coords& coords = {}, bool clip = true) {
  const Graph graph = testing::tiny_graph();
  const Device cpu{.kind = DeviceKind::cpu, .name = "cpu"};
  return fingerprint_of(job,
                        lower({.graph = graph, .job = job, .device = cpu, .coords = coords, .run = {.clip = clip}}));
}

}  // namespace

TEST_CASE("all ranks of a job have one fingerprint, though rank 0 alone may hold what it reads for others") {
  for (const Load load : {Load::each, Load::rank0}) {
    Job job = sharded_job();
    job.load = load;
    const std::string first = fingerprint(job);
    CHECK(first.size() == 16);
    for (const Coords& coords : {Coords{0, 1}, Coords{1, 0}, Coords{1, 1}}) CHECK(fingerprint(job, coords) == first);
  }
}

TEST_CASE("whatever changes the job, its sections or its collectives changes the fingerprint") {
  const std::string base = fingerprint(sharded_job());
  CHECK(fingerprint(sharded_job(), {}, /*clip=*/false) != base);  // the norm is summed over ranks
  const std::vector<std::function<void(Job&)>> changes{[](Job& job) { job.mesh = {.replicate = 1, .shard = 4}; },
                                                       [](Job& job) { job.accumulation = 4; },
                                                       [](Job& job) { job.wrap = WrapNothing{}; },
                                                       [](Job& job) { job.wrap = WrapGroups{2}; },
                                                       [](Job& job) { job.bucket_bytes = 1; },
                                                       [](Job& job) { job.precision.reduce = Dtype::bf16; },
                                                       [](Job& job) { job.micro_batch = 7; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    Job job = sharded_job();
    changes[i](job);
    CHECK(fingerprint(job) != base);
  }
}

TEST_CASE("programs of one job that start different collectives have different fingerprints") {
  const Graph graph = testing::tiny_graph();
  const Device cpu{.kind = DeviceKind::cpu, .name = "cpu"};
  const Job job = sharded_job();
  const Program lowered = lower({.graph = graph, .job = job, .device = cpu, .coords = {}});
  const std::string base = fingerprint_of(job, lowered);
  const auto changed = [&](const std::function<void(Start&)>& change) {
    Program program = lowered;
    for (Instruction& instruction : program.main.instructions) {
      auto* start = std::get_if<Start>(&instruction);
      if (start == nullptr) continue;
      change(*start);
      break;
    }
    return fingerprint_of(job, program);
  };
  CHECK(changed([](Start& start) { start.bytes += Bytes{1}; }) != base);
  CHECK(changed([](Start& start) { start.axis = Axis::replicate; }) != base);
  CHECK(changed([](Start& start) { start.collective = Collective::all_reduce; }) != base);
  CHECK(changed([](Start& start) { start.token += 1; }) == base);  // a name that the rank gives it
}

}  // namespace vramfit::program
