#include "program/readers/peak_place.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "program/make_program.h"
#include "program/readers/peaks.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

using testing::tiny_graph;
using testing::tiny_job;

program::Program program_of(const Graph& graph, const Job& job) {
  static const Device kCpu{.kind = DeviceKind::cpu, .name = "cpu"};
  return program::make_program(
      {.graph = graph, .job = job, .device = kCpu, .coords = {}, .run = {.clip = true}, .labels = false});
}

}  // namespace

TEST_CASE("a program requests the most in the phase that is the highest, and as much as that") {
  for (const std::int64_t rows : {1, 64, 4096}) {
    for (const Checkpointing& checkpointing : {Checkpointing{NoCheckpointing{}}, Checkpointing{FullCheckpointing{}}}) {
      const Graph graph = tiny_graph({.blocks = 3});
      Job job = tiny_job();
      job.micro_batch = rows;
      job.checkpointing = checkpointing;
      CAPTURE(rows);
      const program::Program program = program_of(graph, job);
      const PeakPlace place = peak_place(program);
      const FoldedPeaks peaks = folded_peaks(program, Bytes{1});
      CHECK(place.requested == peaks.requested);
      const auto first = std::ranges::find(peaks.phases, place.requested, &FoldedPhase::requested);
      REQUIRE(first != peaks.phases.end());
      CHECK(first->phase == place.phase);
    }
  }
}

TEST_CASE("of a block that holds far more than all else the peak is in its pass") {
  const Graph graph = tiny_graph({.blocks = 3});
  Job job = tiny_job();
  job.micro_batch = 1;
  program::Program changed = program_of(graph, job);
  // A call that computes the backward pass of the second block: what it is given becomes huge.
  using namespace program;  // NOLINT(google-build-using-namespace): the program's own words
  const Mark* mark = nullptr;
  for (std::size_t i = 0; i < changed.main.instructions.size(); ++i) {
    if (const auto* begun = std::get_if<Mark>(&changed.main.instructions[i])) mark = begun;
    if (mark == nullptr || mark->what != Do::backward || mark->segment != 2) continue;
    Code& code = changed.main;
    code.buffers.push_back({.bytes = Bytes{std::int64_t{1} << 40}, .label = -1, .segment = -1});
    const int buffer = static_cast<int>(code.buffers.size()) - 1;
    const auto here = code.instructions.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    code.instructions.insert(code.instructions.insert(here, Free{buffer}), Allocate{buffer});
    for (Section& section : changed.sections) {
      if (section.begin > i) section.begin += 2;
      if (section.end > i) section.end += 2;
    }
    break;
  }
  CHECK(peak_place(changed).segment == 2);
  CHECK(peak_place_text(changed) == "backward of layers.1");
}

}  // namespace vramfit
