// What layers keep for their backward passes, in host memory meanwhile (program/lowering/activations.cpp).
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/lowering/lower.h"
#include "program/readers/check.h"
#include "program/readers/host_bytes.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_graph.h"

namespace vramfit::program {

namespace {

using testing::tiny_graph;
using testing::tiny_job;

constexpr int kBlocks = 5;
constexpr std::int64_t kSequence = 4096, kHidden = 4;

using testing::kCpu;

Program lowered(const Job& job, int blocks = kBlocks) {
  const Graph graph = tiny_graph({.blocks = blocks});
  return lower({.graph = graph, .job = job, .device = kCpu, .coords = {}});
}

Job offloading() {
  Job job = tiny_job();
  job.sequence = kSequence;
  job.checkpointing = FullCheckpointing{};
  job.offload = {"activations"};
  return job;
}

/// Copies on a stream, by their places in the main list.
std::vector<std::size_t> copies_on(const Program& program, Stream stream) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < program.main.instructions.size(); ++i) {
    const auto* run = std::get_if<Run>(&program.main.instructions[i]);
    if (run != nullptr && run->kernel == Kernel::copy && run->stream == stream) places.push_back(i);
  }
  return places;
}

Access& source_of(Program& program, std::size_t place) {
  return program.main.accesses[std::get<Run>(program.main.instructions[place]).accesses.first];
}

}  // namespace

TEST_CASE("the input of each checkpointed layer but the last one leaves and comes back once") {
  const Program program = lowered(offloading());
  CHECK(copies_on(program, Stream::to_host).size() == kBlocks - 1);
  CHECK(copies_on(program, Stream::to_device).size() == kBlocks - 1);
  CHECK(fault_of(program) == std::nullopt);
  Job kept = offloading();
  kept.offload.clear();
  CHECK(host_bytes(program) - host_bytes(lowered(kept)) == Bytes{(kBlocks - 1) * kSequence * kHidden * 4});
}

TEST_CASE("of one layer in several, the first's and every such one's after it leave, but never the last layer's") {
  for (const auto& [every, leaving] : {std::pair(2, 2), std::pair(3, 2), std::pair(4, 1), std::pair(5, 1)}) {
    CAPTURE(every);
    Job job = offloading();
    job.offload = {"activations:every:" + std::to_string(every)};
    const Program program = lowered(job);
    CHECK(copies_on(program, Stream::to_host).size() == static_cast<std::size_t>(leaving));
    CHECK(copies_on(program, Stream::to_device).size() == static_cast<std::size_t>(leaving));
    CHECK(fault_of(program) == std::nullopt);
    Job kept = job;
    kept.offload.clear();
    CHECK(host_bytes(program) - host_bytes(lowered(kept)) == Bytes{leaving * kSequence * kHidden * 4});
  }
}

TEST_CASE("without checkpointing, all that a layer keeps leaves") {
  Job job = offloading();
  job.checkpointing = NoCheckpointing{};
  const Program program = lowered(job);
  CHECK(copies_on(program, Stream::to_host).size() > kBlocks - 1);
  CHECK(copies_on(program, Stream::to_host).size() == copies_on(program, Stream::to_device).size());
  CHECK(fault_of(program) == std::nullopt);
}

TEST_CASE("every micro-batch uses the same host memory") {
  Job job = offloading();
  const Bytes once = host_bytes(lowered(job));
  job.accumulation = 7;
  const Program program = lowered(job);
  CHECK(fault_of(program) == std::nullopt);
  CHECK(host_bytes(program) == once);
  CHECK(program.sections.at(3).begin == program.sections.at(2).begin);  // the last micro-batch is the middle one again
}

TEST_CASE("what is small, what is frozen below and what the only layer keeps stays on the card") {
  Job small = offloading();
  small.sequence = 4096 / kHidden - 1;
  CHECK(copies_on(lowered(small), Stream::to_host).empty());
  Job frozen = offloading();
  frozen.freeze = {"embeddings", "layers:0-1"};
  CHECK(copies_on(lowered(frozen), Stream::to_host).size() < kBlocks - 1);
  CHECK(copies_on(lowered(offloading(), 1), Stream::to_host).empty());
}

TEST_CASE("another layer's activations coming back, or a copy that nobody waits for, is a fault") {
  const Program sound = lowered(offloading());
  const std::vector<std::size_t> coming = copies_on(sound, Stream::to_device);
  Program swapped = sound;
  std::swap(source_of(swapped, coming.at(0)).buffer, source_of(swapped, coming.at(1)).buffer);
  const std::optional<std::string> fault = fault_of(swapped);
  REQUIRE(fault);
  CHECK_MESSAGE(fault->find("which holds another value by now") != std::string::npos, *fault);
  for (const Stream stream : {Stream::to_host, Stream::to_device}) {
    for (const std::size_t copy : copies_on(sound, stream)) {
      Program unawaited = sound;
      const int token = std::get<Record>(unawaited.main.instructions.at(copy + 1)).token;
      for (Instruction& instruction : unawaited.main.instructions) {
        const auto* wait = std::get_if<Wait>(&instruction);
        if (wait != nullptr && wait->token == token) instruction = Record{token, Stream::host};
      }
      CHECK(fault_of(unawaited) != std::nullopt);
    }
  }
}

}  // namespace vramfit::program
