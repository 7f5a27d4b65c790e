// How wide the band of the native allocator's reserved memory is over the orders of addresses that an estimate looks
// at, and how often 100 other shuffles leave it. Prints figures, never a verdict.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "estimator/allocator/ledger_replay.h"
#include "estimator/estimate.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/resolve_job.h"
#include "program/readers/count.h"
#include "tests/support/models.h"

namespace vramfit::testing {

namespace {

constexpr std::uint64_t kFirstUnseen = 1001, kUnseen = 100;

using Settings = std::vector<std::pair<const char*, const char*>>;

struct Row {
  const char* cluster;
  Settings settings;
};

Bytes peak_reserved(const Ledger& ledger, Placement placement) {
  CardMemory card(placement);
  LedgerReplay replay({}, card);
  for (const Event& event : ledger.events) replay.add(event);
  return {replay.stats().reserved.peak};
}

struct Tally {
  int jobs = 0, wide = 0, above = 0, below = 0, over_five = 0;
  double widest = 0, worst_above = 0;
};

void add(Tally& tally, const Row& row) {
  Job job = unresolved_job();
  std::string text = row.cluster;
  for (const auto& [field, value] : row.settings) {
    set_job_field(job, job_field_named(field), value, field);
    text += fmt::format(" {}={}", field, value);
  }
  job.allocator = "native";
  std::vector<std::string> notes;
  const ModelSpec spec = llama_8b();
  const Cluster cluster = parse_cluster(row.cluster);
  job = resolve_job(job, spec, cluster, notes);
  const Ledger ledger = count(build_graph(spec, loss_options(job)), job, cluster.card.device, {}, {});
  const RankEstimate rank = fold(ledger, job, cluster.card.device);
  int above = 0, below = 0;
  for (std::uint64_t seed = kFirstUnseen; seed < kFirstUnseen + kUnseen; ++seed) {
    const Bytes reserved = peak_reserved(ledger, {AddressOrder::shuffled, seed});
    above += reserved > rank.peak_reserved ? 1 : 0;
    below += reserved < rank.least_reserved ? 1 : 0;
    const double over = static_cast<double>(reserved.n) / static_cast<double>(rank.peak_reserved.n) - 1;
    tally.worst_above = std::max(tally.worst_above, over);
  }
  fmt::print("{:<75} {} to {}, {:.2f} %; {} above, {} below\n", text, format_gib(rank.least_reserved),
             format_gib(rank.peak_reserved), 100 * band_width(rank), above, below);
  ++tally.jobs;
  tally.wide += band_width(rank) > 0 ? 1 : 0;
  tally.over_five += band_width(rank) > kBandSaid ? 1 : 0;
  tally.above += above;
  tally.below += below;
  tally.widest = std::max(tally.widest, band_width(rank));
}

}  // namespace

}  // namespace vramfit::testing

int main() {
  using namespace vramfit::testing;  // NOLINT(google-build-using-namespace)
  Tally tally;
  for (const char* cluster : {"8xH200", "2xH200"}) {
    for (const char* sequence : {"1111", "2301", "4096"}) {
      for (const char* checkpointing : {"none", "full", "every:2"}) {
        for (const char* accumulation : {"1", "3"}) {
          add(tally,
              {cluster, {{"seq_len", sequence}, {"checkpointing", checkpointing}, {"grad_accum", accumulation}}});
        }
      }
    }
  }
  fmt::print(
      "{} jobs: {} with a band, {} over 5 %, the widest {:.2f} %; of {} unseen shuffles {} lie above, by {:.2f} % at "
      "most, "
      "and {} below\n",
      tally.jobs, tally.wide, tally.over_five, 100 * tally.widest, tally.jobs * static_cast<int>(kUnseen), tally.above,
      100 * tally.worst_above, tally.below);
  return 0;
}
