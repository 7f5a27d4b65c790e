#include "executor/meter/meter.h"

#include <ATen/ops/empty.h>
#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace vramfit {

namespace {

constexpr std::int64_t kBig = 1 << 20;  // elements; nothing else in the process is near

at::Tensor make(std::int64_t elements) { return at::empty({elements}, at::kFloat); }

}  // namespace

TEST_CASE("bytes are counted as asked for, under the label and category of their scope") {
  Meter& meter = Meter::instance();
  meter.install_cpu(Bytes{0});
  meter.reset();
  meter.record_events(true);
  const Bytes before = meter.current();
  {
    const LabelScope scope(Category::activations, "layers.0.q");
    const at::Tensor tensor = make(1001);
    CHECK(meter.current() - before == Bytes{4004});
  }
  CHECK(meter.current() == before);
  meter.record_events(false);
  const Ledger ledger = meter.take_ledger();
  REQUIRE(ledger.events.size() == 2);
  CHECK(ledger.labels == std::vector<std::string>{"layers.0.q"});
  CHECK(ledger.events[0].bytes == 4004);
  CHECK(ledger.events[0].category == Category::activations);
  CHECK(ledger.events[1].bytes == -4004);
  CHECK(ledger.events[1].id == ledger.events[0].id);
}

TEST_CASE("a phase that is entered again keeps its highest bytes, and starts with what is live") {
  Meter& meter = Meter::instance();
  meter.install_cpu(Bytes{0});
  meter.reset();
  const at::Tensor held = make(kBig);
  const Bytes floor = meter.current();
  meter.enter(Phase::forward, 1);
  make(kBig);
  meter.enter(Phase::loss, 1);
  meter.enter(Phase::forward, 1);
  const std::vector<MeasuredPhase> phases = meter.phases();
  REQUIRE(phases.size() == 2);
  CHECK(phases[0].peak - floor == Bytes{4 * kBig});
  CHECK(phases[1].peak == floor);
}

// Under the thread sanitizer, which saw phases read while another rank added one.
TEST_CASE("ranks that are threads enter phases of one meter at once") {
  Meter& meter = Meter::instance();
  meter.install_cpu(Bytes{0});
  meter.reset();
  constexpr int kSteps = 50;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&meter] {
      for (int step = 1; step <= kSteps; ++step) {
        for (const Phase phase : {Phase::forward, Phase::loss, Phase::backward}) meter.enter(phase, step);
      }
    });
  }
  ranks.clear();
  CHECK(meter.phases().size() == 3 * kSteps);
}

TEST_CASE("allocations that a call makes by itself are named by their sizes, others by the call") {
  Meter& meter = Meter::instance();
  meter.install_cpu(Bytes{0});
  meter.reset();
  meter.record_events(true);
  {
    const ExpectedScope scope({{Bytes{40}, Category::activations, "y"}, {Bytes{8}, Category::temporaries, "op: t"}},
                              "op: unlisted");
    make(2);
    make(10);
    make(10);
  }
  meter.record_events(false);
  CHECK(meter.take_ledger().labels == std::vector<std::string>{"op: t", "y", "op: unlisted"});
}

TEST_CASE("an allocation beyond the budget is refused with the largest categories, and counted nowhere") {
  Meter& meter = Meter::instance();
  meter.install_cpu(Bytes{0});
  const LabelScope scope(Category::optimizer_state, "states");
  const at::Tensor held = make(kBig);
  meter.install_cpu(meter.current() + Bytes{4 * kBig});
  const Bytes before = meter.current();
  const at::Tensor fits = make(kBig);
  CHECK_THROWS_WITH_AS(make(1), doctest::Contains("optimizer_state"), OutOfMemory);
  meter.install_cpu(Bytes{0});
  CHECK(meter.current() - before == Bytes{4 * kBig});
}

TEST_CASE("the resident set is read from the system") {
  const ResidentBytes resident = resident_bytes();
  CHECK(resident.now > 1 * kMiB);
  CHECK(resident.peak >= resident.now);
}

}  // namespace vramfit
