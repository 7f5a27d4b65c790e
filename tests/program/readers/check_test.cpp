#include "program/readers/check.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "program/lowering/lower.h"
#include "program/schedules/schedule.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_graph.h"

namespace vramfit::program {

namespace {

using testing::tiny_graph;
using testing::tiny_job;

using testing::kCpu;

/// Two shards by two replicas, three micro-batches, recomputed blocks: gathers, reductions and replica sums.
Job job_with_everything() {
  Job job = tiny_job();
  job.precision = precision_named("bf16-mixed");
  job.sharding = "hybrid-shard";
  job.mesh = {.replicate = 2, .shard = 2};
  job.checkpointing = FullCheckpointing{};
  job.accumulation = 3;
  return job;
}

Program program_of(const Job& job) {
  const Graph graph = tiny_graph();
  return lower({.graph = graph, .job = job, .device = kCpu, .coords = {}});
}

template <typename What>
std::vector<std::size_t> positions_of(const std::vector<Instruction>& code, std::size_t begin = 0) {
  std::vector<std::size_t> positions;
  for (std::size_t i = begin; i < code.size(); ++i) {
    if (std::holds_alternative<What>(code[i])) positions.push_back(i);
  }
  return positions;
}

/// The program without one instruction. Positions of sections stay: a mark takes its place.
Program without(Program program, std::size_t position) {
  program.main.instructions[position] = Mark{};
  return program;
}

/// How many of these instructions are missed when they are left out one at a time.
template <typename What>
int unnoticed(const Program& program) {
  int missed = 0;
  for (const std::size_t position : positions_of<What>(program.main.instructions, program.sections.at(1).begin)) {
    missed += fault_of(without(program, position)) ? 0 : 1;
  }
  return missed;
}

/// Two streams and one buffer of the second one's pool: that stream writes it, the first reads it, and both start over.
/// `leave_out`: one of these instructions (-1: none).
Program two_streams(int leave_out = -1) {
  constexpr Stream kOther = Stream::all_gather;
  Program program;
  program.labels = {"copy", "buffer"};
  program.main.buffers = {{.bytes = Bytes{512}, .label = 1, .stream = kOther}};
  program.main.accesses = {{0, How::write}, {0, How::read}};
  program.tokens = 2;
  const auto run = [](std::uint32_t access, Stream stream) {
    return Run{.kernel = Kernel::call, .op = 0, .accesses = {access, 1}, .inside = {}, .stream = stream};
  };
  std::vector<Instruction>& code = program.main.instructions;
  code = {Allocate{0},     run(0, kOther), Record{0, kOther}, Wait{0}, run(1, Stream::compute), Record{1},
          Wait{1, kOther}, Free{0}};
  if (leave_out >= 0) code[static_cast<std::size_t>(leave_out)] = Mark{};
  program.sections = {{.kind = Section::Kind::load}, {.kind = Section::Kind::last, .begin = 0, .end = code.size()}};
  return program;
}

}  // namespace

TEST_CASE("a stream waits for another before it touches what that one wrote or gives memory back to it") {
  CHECK(fault_of(two_streams()) == std::nullopt);
  CHECK(fault_of(two_streams(3)) == "copy: touches buffer, for which its stream has not waited");
  CHECK(fault_of(two_streams(6)) == "allocates buffer, while another stream works with what its pool was given back");
  for (const int record : {2, 5}) {
    CHECK(fault_of(two_streams(record)) == "wait: nothing was started, or it was waited for before");
  }
}

TEST_CASE("what is kept for good is no leak, and is allocated anew in the next step") {
  Program program = two_streams();
  program.main.instructions.back() = Keep{0};
  CHECK(fault_of(program) == std::nullopt);
  program.main.instructions.back() = Mark{};
  CHECK(fault_of(program) == "step: leaves allocated what it didn't find, or freed what it found");
}

TEST_CASE("a first step that stands apart may leave what later steps need") {
  Program program = two_streams();
  std::vector<Instruction>& code = program.main.instructions;
  program.main.buffers.push_back({.bytes = Bytes{512}, .label = 1});
  code.emplace_back(Allocate{1});
  Section& first = program.sections.back();
  first.end = code.size();
  CHECK(fault_of(program) == "step: leaves allocated what it didn't find, or freed what it found");
  first.steps = Section::Steps::first;
  program.sections.push_back({.kind = Section::Kind::last, .begin = 0, .end = 8, .steps = Section::Steps::later});
  CHECK(fault_of(program) == std::nullopt);
  program.sections.back().end = code.size();
  CHECK(fault_of(program) == "allocates buffer, which is allocated");
}

TEST_CASE("sound programs have no fault, with and without shards, replicas, accumulation and recomputation") {
  CHECK(fault_of(program_of(tiny_job())) == std::nullopt);
  CHECK(fault_of(program_of(job_with_everything())) == std::nullopt);
}

TEST_CASE("a step without one of its allocations, frees, starts, waits or calls is found") {
  const Program program = program_of(job_with_everything());
  REQUIRE(positions_of<Start>(program.main.instructions).size() > 8);
  CHECK(unnoticed<Allocate>(program) == 0);
  CHECK(unnoticed<Free>(program) == 0);
  CHECK(unnoticed<Start>(program) == 0);
  CHECK(unnoticed<Wait>(program) == 0);
  CHECK(unnoticed<Call>(program) == 0);
}

TEST_CASE("a block without one of its frees is found, and so is one that frees first") {
  const Program program = program_of(job_with_everything());
  int frees = 0;
  for (std::size_t b = 0; b < program.blocks.size(); ++b) {
    for (const std::size_t position : positions_of<Free>(program.blocks[b].code.instructions)) {
      CAPTURE(b);
      CAPTURE(position);
      Program dropped = program;
      dropped.blocks[b].code.instructions[position] = Mark{};
      CHECK(fault_of(dropped) != std::nullopt);
      Program early = program;
      std::vector<Instruction>& code = early.blocks[b].code.instructions;
      std::swap(code[position], code[0]);
      if (position != 0 && std::holds_alternative<Run>(program.blocks[b].code.instructions[0])) {
        CHECK(fault_of(early) != std::nullopt);
      }
      ++frees;
    }
  }
  CHECK(frees > 5);
}

TEST_CASE("waits that change places are found") {
  const Program program = program_of(job_with_everything());
  const std::vector<std::size_t> waits = positions_of<Wait>(program.main.instructions);
  REQUIRE(waits.size() > 4);
  for (std::size_t i = 0; i + 1 < waits.size(); ++i) {
    Program swapped = program;
    std::swap(swapped.main.instructions[waits[i]], swapped.main.instructions[waits[i + 1]]);
    CAPTURE(i);
    CHECK(fault_of(swapped) != std::nullopt);
  }
}

TEST_CASE("a unit that was gathered before its shard was updated is not read after it") {
  const Program program = program_of(job_with_everything());
  const std::vector<Instruction>& code = program.main.instructions;
  const auto is_update = [&](std::size_t position) { return std::get<Run>(code[position]).kernel == Kernel::update; };
  int found = 0;
  for (const std::size_t update : positions_of<Run>(code, program.sections.back().begin)) {
    if (!is_update(update)) continue;
    // The shard is written where the first forward pass begins, while units are gathered.
    const Access shard = program.main.accesses[std::get<Run>(code[update]).accesses.first];
    Program early = program;
    early.main.accesses.push_back(shard);
    const Range access{static_cast<std::uint32_t>(early.main.accesses.size() - 1), 1};
    const std::vector<std::size_t> marks = positions_of<Mark>(code, program.sections[1].begin);
    const auto forward = std::ranges::find_if(
        marks, [&](std::size_t position) { return std::get<Mark>(code[position]).what == Do::forward; });
    REQUIRE(forward != marks.end());
    early.main.instructions[*forward] = Run{.kernel = Kernel::update, .accesses = access};
    const std::string fault = fault_of(early).value_or("");
    found += fault.find("whose source was written since it was copied") != std::string::npos ? 1 : 0;
  }
  CHECK(found > 0);
}

TEST_CASE("a fault says what happens to which buffer") {
  Program program = program_of(job_with_everything());
  const std::size_t gather = positions_of<Wait>(program.main.instructions).front();
  const std::string fault = fault_of(without(program, gather)).value_or("");
  CHECK(fault == "forward: touches embed: gathered, which a collective has");
}

}  // namespace vramfit::program
