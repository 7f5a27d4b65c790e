#include <doctest/doctest.h>

#include <random>
#include <stdexcept>

#include "estimator/rank_estimate.h"
#include "tests/support/devices.h"

namespace vramfit {

namespace {

using testing::kCpu;
const Device kCuda{.kind = DeviceKind::cuda, .name = "H100-80GB", .compute_capability = 90, .sm_count = 132};

Bytes sum_of(const Breakdown& breakdown) {
  Bytes sum = breakdown.rounding;
  for (const Bytes bytes : breakdown.categories) sum += bytes;
  return sum;
}

const PhasePeak& phase(const RankEstimate& rank, Phase wanted, bool steady) {
  for (const PhasePeak& peak : rank.phases) {
    if (peak.phase == wanted && peak.steady == steady) return peak;
  }
  throw std::out_of_range("no such phase");
}

}  // namespace

TEST_CASE("on CPU what is reserved is what was asked for, and the breakdown is that of the peak") {
  LedgerWriter writer;
  writer.set_phase(Phase::load, 0);
  writer.allocate({1000}, Category::parameters, writer.label("shard"));
  writer.set_phase(Phase::forward, 1);
  const std::int64_t x = writer.allocate({300}, Category::activations, writer.label("x"));
  const std::int64_t t = writer.allocate({50}, Category::temporaries, writer.label("t"));
  writer.free(t);
  writer.set_phase(Phase::backward, 1);
  writer.free(x);
  writer.allocate({10}, Category::gradients, writer.label("g"));
  const RankEstimate rank = fold(writer.take(), {}, kCpu);
  CHECK(rank.peak_requested.n == 1350);
  CHECK(rank.peak_reserved.n == 1350);
  CHECK(rank.breakdown.rounding.n == 0);
  CHECK(rank.breakdown.fragmentation.n == 0);
  CHECK(rank.breakdown.categories[static_cast<std::size_t>(Category::temporaries)].n == 50);
  CHECK(sum_of(rank.breakdown) == rank.peak_allocated);
  CHECK(phase(rank, Phase::load, false).requested.n == 1000);
  CHECK(phase(rank, Phase::forward, false).requested.n == 1350);
  CHECK(phase(rank, Phase::backward, false).requested.n == 1300);  // what was live when it began
}

TEST_CASE("on CUDA each block is rounded up to 512 bytes, and the rounding is a line of the breakdown") {
  LedgerWriter writer;
  writer.allocate({1}, Category::workspace, writer.label("a"));
  writer.allocate({513}, Category::activations, writer.label("b"));
  const RankEstimate rank = fold(writer.take(), {}, kCuda);
  CHECK(rank.peak_requested.n == 514);
  CHECK(rank.peak_allocated.n == 512 + 1024);
  CHECK(rank.breakdown.rounding.n == 512 + 1024 - 514);
  CHECK(sum_of(rank.breakdown) == rank.peak_allocated);
  CHECK(rank.peak_reserved == 2 * kMiB);
  CHECK(rank.breakdown.fragmentation == rank.peak_reserved - rank.peak_allocated);
}

TEST_CASE("a phase that is entered again keeps its highest peak, and steady steps are apart from the first") {
  LedgerWriter writer;
  for (int step = 1; step <= 2; ++step) {
    for (const std::int64_t bytes : {100, 300, 200}) {
      writer.set_phase(Phase::forward, step);
      const std::int64_t x = writer.allocate({bytes * step}, Category::activations, writer.label("x"));
      writer.set_phase(Phase::backward, step);
      writer.free(x);
    }
  }
  const RankEstimate rank = fold(writer.take(), {}, kCpu);
  CHECK(phase(rank, Phase::forward, false).requested.n == 300);
  CHECK(phase(rank, Phase::forward, true).requested.n == 600);
  CHECK(rank.phases.size() == 4);
}

TEST_CASE("random ledgers: the breakdown sums to the peak, and reserved is never below allocated") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    LedgerWriter writer;
    std::vector<std::int64_t> live;
    for (int event = 0; event < 400; ++event) {
      if (!live.empty() && random() % 5 < 2) {
        const std::size_t which = random() % live.size();
        writer.free(live[which]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        const auto bytes = static_cast<std::int64_t>(1 + (random() % (std::uint64_t{1} << (1 + random() % 28))));
        live.push_back(writer.allocate({bytes}, static_cast<Category>(random() % kCategories), writer.label("x")));
      }
    }
    const Ledger ledger = writer.take();
    for (const Device& device : {kCpu, kCuda}) {
      const RankEstimate rank = fold(ledger, {}, device);
      CHECK(sum_of(rank.breakdown) == rank.peak_allocated);
      CHECK(rank.peak_reserved >= rank.peak_allocated);
      CHECK(rank.peak_allocated >= rank.peak_requested);
    }
  }
}

TEST_CASE("streams have pools of their own") {
  for (const char* allocator : {"native", "expandable"}) {
    Job job;
    job.allocator = allocator;
    LedgerWriter writer;
    writer.free(writer.allocate(30 * kMiB, Category::communication, writer.label("gathered"), Stream::all_gather));
    writer.allocate(30 * kMiB, Category::activations, writer.label("x"));
    CHECK(fold(writer.take(), job, kCuda).peak_reserved == (job.allocator == "native" ? 60 : 80) * kMiB);
  }
}

TEST_CASE("with an arena its block is reserved from load on, and what lives in it is allocated") {
  LedgerWriter writer;
  writer.set_phase(Phase::load, 0);
  writer.allocate(Bytes{21 * kMiB.n}, Category::parameters, writer.label("shard"));
  writer.set_phase(Phase::forward, 1);
  const std::int64_t x = writer.allocate({513}, Category::activations, writer.label("x"));
  writer.free(x);
  const Ledger ledger = writer.take();
  arena::Script script;
  script.size = 23 * kMiB;  // a GPU's memory comes in pages of 2 MiB
  const RankEstimate on_gpu = fold_in_arena(ledger, script, kCuda);
  CHECK(on_gpu.peak_allocated == 21 * kMiB + Bytes{1024});
  CHECK(on_gpu.peak_reserved == 24 * kMiB);
  CHECK(on_gpu.least_reserved == on_gpu.peak_reserved);
  CHECK(phase(on_gpu, Phase::load, false).reserved == 24 * kMiB);
  CHECK(on_gpu.breakdown.fragmentation == on_gpu.peak_reserved - on_gpu.peak_allocated);
  const RankEstimate on_cpu = fold_in_arena(ledger, script, kCpu);
  CHECK(on_cpu.peak_allocated == 21 * kMiB + Bytes{513});
  CHECK(on_cpu.peak_reserved == 23 * kMiB);
}

}  // namespace vramfit
