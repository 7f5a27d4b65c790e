#include "program/lowering/lower.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "program/readers/check.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_graph.h"

namespace vramfit::program {

namespace {

using testing::tiny_graph;
using testing::tiny_job;

using testing::kCpu;

Program program_of(const Graph& graph, const Job& job) {
  return lower({.graph = graph, .job = job, .device = kCpu, .coords = {}});
}

std::size_t blocks_of(int layers, const Job& job) {
  return program_of(tiny_graph({.blocks = layers}), job).blocks.size();
}

/// How many backward runs of the program's blocks write a caller's buffer last, and how many add to one. It is the
/// gradient of the run's last parameter; of a run without parameters, a gradient that is overwritten in place.
std::pair<int, int> slots_written_and_added(const Program& program) {
  int written = 0, added = 0;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.code.instructions) {
      const auto* run = std::get_if<Run>(&instruction);
      if (run == nullptr || run->kernel != Kernel::backward) continue;
      const Access& last = block.code.accesses[run->accesses.first + run->accesses.count - 1];
      if (last.buffer >= 0 && last.buffer < block.slots) ++(last.how == How::add ? added : written);
    }
  }
  return {written, added};
}

}  // namespace

TEST_CASE("a last micro-batch that does what the one before did is its instructions once more") {
  Job job = tiny_job();
  job.mesh.shard = 2;
  job.accumulation = 5;
  const Program program = program_of(tiny_graph(), job);
  const Section &middle = program.sections.at(2), &last = program.sections.at(3);
  CHECK(last.begin == middle.begin);
  CHECK(last.end == middle.end);
  CHECK(program.sections.at(4).begin == last.end);
  CHECK(!fault_of(program));
  const std::vector<Section> merged = merged_sections(program);
  CHECK(merged.size() == program.sections.size() - 1);
  CHECK(merged.at(2).times == 4);
}

TEST_CASE("sums over replicas are in the last micro-batch alone, which then has instructions of its own") {
  Job job = tiny_job();
  job.mesh.shard = 2;
  job.mesh.replicate = 2;
  job.accumulation = 3;
  const Program program = program_of(tiny_graph(), job);
  const auto sums_in = [&](Section::Kind kind) {
    int sums = 0;
    for (const Section& section : program.sections) {
      for (std::size_t i = section.begin; section.kind == kind && i < section.end; ++i) {
        const auto* start = std::get_if<Start>(&program.main.instructions[i]);
        sums += start != nullptr && start->axis == Axis::replicate ? 1 : 0;
      }
    }
    return sums;
  };
  CHECK(sums_in(Section::Kind::middle) == 0);
  CHECK(sums_in(Section::Kind::last) > 0);
  CHECK(!fault_of(program));
}

TEST_CASE("the first micro-batch writes gradients, later ones add to what is there") {
  Job job = tiny_job();
  const auto [written, added] = slots_written_and_added(program_of(tiny_graph(), job));
  CHECK(written > 3);
  CHECK(added == 0);
  job.accumulation = 3;
  const auto [first, later] = slots_written_and_added(program_of(tiny_graph(), job));
  CHECK(later > 0);
  // The middle and the last micro-batch share their blocks, in which only gradients of parameters are added to.
  CHECK(first + later == 2 * written);
}

TEST_CASE("layers that are alike share their blocks, however many there are") {
  Job job = tiny_job();
  job.mesh.shard = 2;
  job.accumulation = 3;
  CHECK(blocks_of(30, job) == blocks_of(5, job));
  job.checkpointing = FullCheckpointing{};
  CHECK(blocks_of(30, job) == blocks_of(5, job));
}

TEST_CASE("sections are load, the first, the middle and the last micro-batch, and the update") {
  using Kind = Section::Kind;
  const auto kinds = [](std::int64_t accumulation) {
    Job job = tiny_job();
    job.accumulation = accumulation;
    std::vector<std::pair<Kind, std::int64_t>> all;
    for (const Section& section : program_of(tiny_graph(), job).sections) all.emplace_back(section.kind, section.times);
    return all;
  };
  using Kinds = std::vector<std::pair<Kind, std::int64_t>>;
  CHECK(kinds(1) == Kinds{{Kind::load, 1}, {Kind::last, 1}, {Kind::update, 1}});
  CHECK(kinds(2) == Kinds{{Kind::load, 1}, {Kind::first, 1}, {Kind::last, 1}, {Kind::update, 1}});
  CHECK(kinds(64) == Kinds{{Kind::load, 1}, {Kind::first, 1}, {Kind::middle, 62}, {Kind::last, 1}, {Kind::update, 1}});
}

TEST_CASE("a program's size does not grow with the number of micro-batches") {
  const auto instructions = [](std::int64_t accumulation) {
    Job job = tiny_job();
    job.accumulation = accumulation;
    return program_of(tiny_graph(), job).main.instructions.size();
  };
  CHECK(instructions(3) == instructions(1000));
}

}  // namespace vramfit::program
