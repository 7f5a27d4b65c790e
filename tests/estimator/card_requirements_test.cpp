#include "estimator/card_requirements.h"

#include <doctest/doctest.h>

#include <ctime>

#include "estimator/rank_estimate.h"
#include "model_specs/catalog.h"
#include "tests/support/config_file.h"
#include "tests/support/job_settings.h"

namespace vramfit {

using testing::job_with;
using testing::Settings;

TEST_CASE("what only asks whether a job fits says what an estimate says") {
  const ModelSpec spec = testing::small_model("llama");
  int fitting = 0, not_fitting = 0;
  for (const char* allocator : {"native", "expandable", "max_split_size_mb=20", "per_process_memory_fraction=0.4",
                                "per_process_memory_fraction=0.5,garbage_collection_threshold=0.1"}) {
    for (const char* cluster : {"1xH100-80GB@1.4GiB", "2xH100-80GB@2.1GiB", "8xH100-80GB@4GiB", "4xRTX4090-24GB"}) {
      for (const char* micro_batch : {"1", "256", "1024"}) {
        CAPTURE(allocator);
        CAPTURE(cluster);
        CAPTURE(micro_batch);
        const Job job = job_with({{"allocator", allocator}, {"micro_batch", micro_batch}, {"grad_accum", "4"}});
        const Estimate e = estimate(spec, job, parse_cluster(cluster), {.suggestions = false});
        const std::optional<RankEstimate> rank = rank_if_it_fits(spec, job, e.cluster, {});
        REQUIRE(rank.has_value() == (e.verdict == Verdict::fits));
        ++(rank ? fitting : not_fitting);
        if (!rank) continue;
        CHECK(rank->total == e.ranks[0].total);
        CHECK(rank->upper_bound == e.ranks[0].upper_bound);
      }
    }
  }
  CHECK(fitting > 10);
  CHECK(not_fitting > 10);
}

TEST_SUITE("full") {
  TEST_CASE("cards for a job whose reserved memory grows with every step are known in seconds") {
    const Job job = job_with({{"wrap", "size:54000000"},
                              {"wrap_embeddings", "off"},
                              {"prefetch", "backward=none,forward=3,limit=4"},
                              {"deterministic", "on"},
                              {"checkpointing", "full"},
                              {"precision", "bf16-pure"},
                              {"allocator", "max_split_size_mb=64"},
                              {"seq_len", "234"},
                              {"micro_batch", "5"},
                              {"grad_accum", "7"}});
    const std::clock_t begun = std::clock();
    const CardRequirements requirements =
        card_requirements(catalog_spec(*find_in_catalog("llama-3.2-1b")),
                          [&](const Cluster& /*cluster*/) { return job; }, {.suggestions = false});
    CHECK(requirements.one_card.ranks[0].reserved_grows);
    const double seconds = static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    MESSAGE(seconds << " s of CPU");
    CHECK(seconds < 30);  // 6 in November 2026; minutes where every card was replayed at its capacity
  }
}

}  // namespace vramfit
