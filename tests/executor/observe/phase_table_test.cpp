#include "executor/observe/phase_table.h"

#include <doctest/doctest.h>

namespace vramfit {

namespace {

RankEstimate rank_of(std::int64_t first, std::int64_t last, std::int64_t mib) {
  RankEstimate rank;
  rank.first_rank = first;
  rank.last_rank = last;
  rank.phases = {{.phase = Phase::load, .steady = false, .requested = mib * kMiB, .allocated = {}, .reserved = {}},
                 {.phase = Phase::forward,
                  .steady = true,
                  .requested = 2 * mib * kMiB,
                  .allocated = 3 * mib * kMiB,
                  .reserved = 4 * mib * kMiB}};
  rank.peak_requested = 2 * mib * kMiB;
  rank.peak_allocated = 3 * mib * kMiB;
  rank.peak_reserved = 4 * mib * kMiB;
  return rank;
}

}  // namespace

TEST_CASE("CPU ranks show one figure a phase beside what was predicted") {
  const RankEstimate predicted = rank_of(0, 3, 10);
  CHECK(phase_table(rank_of(0, 0, 11), &predicted, true) ==
        "Peak memory of rank 0 by phase, MiB\n"
        "                           requested     predicted\n"
        "  load                         11.00         10.00\n"
        "  forward, steady              22.00         20.00\n"
        "  whole run                    22.00         20.00\n");
}

TEST_CASE("GPUs show allocated and reserved, and a phase that nobody predicted has a dash") {
  RankEstimate predicted = rank_of(0, 3, 10);
  predicted.phases.pop_back();
  CHECK(phase_table(rank_of(1, 1, 11), &predicted, false) ==
        "Peak memory of rank 1 by phase, MiB\n"
        "                           allocated     predicted      reserved     predicted\n"
        "  load                          0.00          0.00          0.00          0.00\n"
        "  forward, steady              33.00             -         44.00             -\n"
        "  whole run                    33.00         30.00         44.00         40.00\n");
  CHECK(phase_table(rank_of(0, 0, 11), nullptr, true).find("22.00             -\n") != std::string::npos);
}

TEST_CASE("a rank's prediction is the entry that holds it") {
  const std::vector<RankEstimate> predicted{rank_of(0, 3, 1), rank_of(4, 7, 2)};
  CHECK(prediction_of(predicted, 3) == predicted.data());
  CHECK(prediction_of(predicted, 4) == &predicted[1]);
  CHECK(prediction_of(predicted, 8) == nullptr);
}

}  // namespace vramfit
