// Jobs at the edges: larger than any card, reserved memory that grows, groups that are never made.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "estimator/allocator/ledger_replay.h"
#include "estimator/estimate.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "model_specs/catalog.h"
#include "program/readers/count.h"
#include "tests/support/job_settings.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::job_with;
using testing::Settings;

namespace {

ModelSpec model(const char* name) { return catalog_spec(*find_in_catalog(name)); }

Estimate estimate_of(const ModelSpec& spec, const char* cluster, const Settings& settings) {
  return estimate(spec, job_with(settings), parse_cluster(cluster), {.suggestions = false});
}

/// The peak of what a run reserves in all its micro-batches and `steps`, on a card without a limit.
Bytes reserved_by_run(const ModelSpec& spec, const Estimate& e, int steps) {
  const Ledger ledger = count(build_graph(spec, loss_options(e.job)), e.job, e.cluster.card.device, {},
                              {.steps = steps, .abbreviate = false});
  CardMemory card({AddressOrder::ascending, 0});
  return fold_on(ledger, allocator_settings(e.job.allocator), card).peak_reserved;
}

}  // namespace

TEST_CASE("a job that is larger than any card does not fit, under every allocator setting") {
  const ModelSpec spec = model("gpt2");
  for (const char* allocator : {"expandable", "native", "roundup_power2_divisions=16", "max_split_size_mb=64",
                                "per_process_memory_fraction=0.0001"}) {
    for (const char* rows : {"400000", "16777216", "268435456"}) {
      CAPTURE(allocator);
      CAPTURE(rows);
      const Estimate e = estimate_of(spec, "8xH100-80GB", {{"micro_batch", rows}, {"allocator", allocator}});
      CHECK(e.verdict == Verdict::does_not_fit);
      CHECK(e.ranks[0].total > e.capacity);
    }
  }
  CHECK(estimate_of(spec, "8xH100-80GB@1048576GiB", {{"micro_batch", "400000"}, {"seq_len", "64"}}).verdict ==
        Verdict::fits);
}

TEST_CASE("a size beyond 64 bits is refused, not wrapped") {
  CHECK_THROWS_AS(
      estimate_of(testing::llama_8b(), "8xH100-80GB", {{"micro_batch", "268435456"}, {"seq_len", "268435456"}}),
      InputError);
}

TEST_CASE("every job that resolves can be written as flags and read again") {
  const Job job = estimate_of(model("gpt2"), "8xH100-80GB", {{"micro_batch", "268435456"}, {"seq_len", "2"}}).job;
  CHECK(job.global_batch > 268435456);
  CHECK(job_as_flags(job, unresolved_job()).find("--global-batch 2147483648") != std::string::npos);
  CHECK_THROWS_WITH_AS(estimate_of(model("gpt2"), "1xH100-80GB", {{"global_batch", "1099511627776"}}),
                       doctest::Contains("--global-batch 1099511627776: leaves 1099511627776 to --grad-accum"),
                       InputError);

  const Job most = estimate_of(model("gpt2"), "4096x8xB200-192GB",
                               {{"micro_batch", "100000000"}, {"grad_accum", "1000000"}, {"seq_len", "2"}})
                       .job;
  CHECK(job_as_flags(most, unresolved_job()).find("--global-batch 3276800000000000000") != std::string::npos);
  const Job largest = estimate_of(model("gpt2"), "65536x1024xH100-80GB", {}).job;
  CHECK(job_as_flags(largest, unresolved_job()).find("--mesh replicate=1,shard=67108864") != std::string::npos);
}

TEST_CASE("reserved memory that grows with every step is said, and its upper bound is the card's capacity") {
  const ModelSpec spec = model("llama-3.2-1b");
  const Settings settings{{"wrap", "size:54000000"},
                          {"wrap_embeddings", "off"},
                          {"prefetch", "backward=none,forward=3,limit=4"},
                          {"deterministic", "on"},
                          {"checkpointing", "full"},
                          {"precision", "bf16-pure"},
                          {"allocator", "max_split_size_mb=64"},
                          {"seq_len", "234"},
                          {"micro_batch", "5"},
                          {"grad_accum", "7"}};
  const Estimate e = estimate_of(spec, "64x8xH200-141GB", settings);
  const Bytes two = reserved_by_run(spec, e, 2), ten = reserved_by_run(spec, e, 10);
  REQUIRE(two < ten);
  CHECK(e.ranks[0].reserved_grows);
  CHECK(e.verdict == Verdict::at_risk);
  CHECK(e.why.find("grows with every step") != std::string::npos);
  CHECK(e.ranks[0].peak_reserved >= ten);
  CHECK(e.ranks[0].upper_bound >= e.capacity);
  Settings native = settings;
  native[6].second = "native";
  const Estimate settled = estimate_of(spec, "64x8xH200-141GB", native);
  CHECK_FALSE(settled.ranks[0].reserved_grows);
  CHECK(settled.ranks[0].peak_reserved >= reserved_by_run(spec, settled, 10));
}

TEST_CASE("the native band covers a run of many steps with whole gradients kept between micro-batches") {
  const ModelSpec spec = model("qwen3-8b");
  for (const char* accumulation : {"2", "4", "8"}) {
    const Estimate e = estimate_of(
        spec, "2xRTX3090@9000GiB",
        {{"accumulate", "unsharded"}, {"grad_accum", accumulation}, {"allocator", "native"}, {"seq_len", "1024"}});
    CHECK(e.ranks[0].peak_reserved.n >= reserved_by_run(spec, e, 6).n);
  }
}

TEST_CASE("--reshard N counts a communicator only where something is gathered from slices") {
  const auto outside = [](const char* wrap, const char* reshard) {
    return estimate_of(testing::llama_8b(), "8xH100-80GB", {{"wrap", wrap}, {"reshard", reshard}})
        .ranks[0]
        .breakdown.outside_allocator;
  };
  CHECK(outside("layer", "2") > outside("layer", "always"));
  CHECK(outside("none", "2") == outside("none", "always"));
}

}  // namespace vramfit
