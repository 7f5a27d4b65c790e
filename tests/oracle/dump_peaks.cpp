// The peaks of a counted job as the caching allocator makes them on a card that hands out ascending addresses, as a
// phantom one does unless told otherwise: dump_peaks CONFIG.JSON CLUSTER STEPS [FIELD=VALUE ...] One JSON object:
// {"requested": bytes, "allocated": bytes, "reserved": bytes}, highest over load and all steps.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <optional>

#include "estimator/rank_estimate.h"
#include "tests/oracle/counted_job.h"

int main(int argc, char** argv) try {
  const vramfit::testing::CountedJob counted = vramfit::testing::count_from_arguments(argc, argv);
  vramfit::CardMemory card(counted.cluster.card.memory, std::nullopt, {vramfit::AddressOrder::ascending, 0});
  const vramfit::RankEstimate peaks =
      vramfit::fold_on(counted.ledger, vramfit::allocator_settings(counted.job.allocator), card);
  fmt::print("{{\"requested\": {}, \"allocated\": {}, \"reserved\": {}}}\n", peaks.peak_requested.n,
             peaks.peak_allocated.n, peaks.peak_reserved.n);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
