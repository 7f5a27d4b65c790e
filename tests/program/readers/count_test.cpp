#include "program/readers/count.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "program/ledger/ledger_diff.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

using testing::tiny_graph;
using testing::tiny_job;

using testing::kCpu;

/// "+label" and "-label" of the events of one step.
std::vector<std::string> story(const Ledger& ledger, int step) {
  std::vector<std::string> lines;
  for (const Event& event : ledger.events) {
    if (event.step != step) continue;
    lines.push_back((event.bytes > 0 ? "+" : "-") + ledger.labels[static_cast<std::size_t>(event.label)]);
  }
  return lines;
}

std::int64_t live_at_end(const Ledger& ledger, int last_step) {
  std::int64_t live = 0;
  for (const Event& event : ledger.events) live += event.step <= last_step ? event.bytes : 0;
  return live;
}

Ledger count_tiny(const Job& job, const Graph& graph = tiny_graph({.blocks = 1}), int steps = 1) {
  return count(graph, job, kCpu, {}, {.steps = steps});
}

}  // namespace

TEST_CASE("the ledger of a one-block chain on one rank reads like the step") {
  const std::vector<std::string> lines = story(count_tiny(tiny_job()), 1);
  REQUIRE(lines.size() > 12);
  CHECK(lines[2] == "+embed.x");
  CHECK(lines[3] == "+layers.0.h");
  CHECK(lines[4] == "+layers.0.f");  // the residual is added in place of it
  CHECK(lines[5] == "+head.logits");
  CHECK(lines[6] == "+loss.loss");
  CHECK(lines[7] == "+loss.lse");
  CHECK(lines.back() == "-head: gradient shard");
}

TEST_CASE("each step leaves exactly what load left") {
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-pure"}) {
    for (const char* sharding : {"no-shard", "shard-grad-op", "full-shard"}) {
      for (const Checkpointing& checkpointing :
           {Checkpointing{NoCheckpointing{}}, Checkpointing{FullCheckpointing{}}}) {
        CAPTURE(precision);
        CAPTURE(sharding);
        Job job = tiny_job();
        job.precision = precision_named(precision);
        job.sharding = sharding;
        job.checkpointing = checkpointing;
        job.accumulation = 2;
        (std::string(sharding) == "no-shard" ? job.mesh.replicate : job.mesh.shard) = 2;
        const Ledger ledger = count_tiny(job, tiny_graph({.tied = true}), 3);
        CHECK(live_at_end(ledger, 0) == live_at_end(ledger, 1));
        CHECK(live_at_end(ledger, 0) == live_at_end(ledger, 3));
      }
    }
  }
}

TEST_CASE("every block is freed at most once, with the bytes it was allocated with") {
  Job job = tiny_job();
  job.mesh.shard = 3;
  job.checkpointing = FullCheckpointing{};
  std::map<std::int64_t, std::int64_t> live;
  for (const Event& event : count_tiny(job, tiny_graph({.blocks = 3}), 2).events) {
    if (event.bytes > 0) CHECK(live.emplace(event.id, event.bytes).second);
    if (event.bytes < 0) {
      REQUIRE(live.contains(event.id));
      CHECK(live[event.id] == -event.bytes);
      live.erase(event.id);
    }
  }
}

TEST_CASE("steps one and two allocate alike, since states are made at load") {
  Job job = tiny_job();
  job.mesh.shard = 2;
  job.accumulation = 2;
  const Ledger ledger = count_tiny(job, tiny_graph(), 2);
  CHECK(story(ledger, 1) == story(ledger, 2));
}

TEST_CASE("micro-batches left out of an abbreviated count change no peak") {
  Job job = tiny_job();
  job.mesh.shard = 2;
  job.accumulation = 7;
  const auto peak_of = [&](bool abbreviate) {
    std::int64_t live = 0, peak = 0;
    for (const Event& event : count(tiny_graph(), job, kCpu, {}, {.abbreviate = abbreviate}).events) {
      live += event.bytes;
      peak = std::max(peak, live);
    }
    return peak;
  };
  CHECK(peak_of(true) == peak_of(false));
}

TEST_CASE("checkpointing holds block inputs only, and rebuilds the rest before backward") {
  Job job = tiny_job();
  job.checkpointing = FullCheckpointing{};
  const Graph graph = tiny_graph({.blocks = 3});
  const auto lines = story(count_tiny(job, graph), 1);
  // proj's output is taken over by the residual, whose result nobody reads in backward: it is not run again.
  CHECK(std::ranges::count(lines, "+layers.1.f") == 1);
}

TEST_CASE("freezing everything is refused with the flag's name") {
  Job job = tiny_job();
  job.freeze = {"*"};
  CHECK_THROWS_WITH_AS(count_tiny(job),
                       "--freeze leaves no parameter to train (freeze less, as layers:FIRST-LAST, or leave it out)",
                       InputError);
}

TEST_CASE("a difference between ledgers is told by the label of the first event that differs") {
  Job job = tiny_job();
  const Ledger ledger = count_tiny(job);
  CHECK(compare_ledgers(ledger, ledger).equal);
  Ledger other = ledger;
  other.events[20].bytes += other.events[20].bytes > 0 ? 4 : -4;
  const LedgerDifference difference = compare_ledgers(ledger, other);
  CHECK_FALSE(difference.equal);
  CHECK(difference.first.find(ledger.labels[static_cast<std::size_t>(ledger.events[20].label)]) != std::string::npos);
}

}  // namespace vramfit
