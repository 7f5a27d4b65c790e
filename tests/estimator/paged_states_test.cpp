// Paged states of the engine, and of bitsandbytes' AdamW under transformers' Trainer. That the allocator sees nothing
// else of them is tested in tests/run/phantom_cover and tests/oracle/hf_trainer, event by event, and so are the bytes
// of managed memory.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "estimator/estimate.h"
#include "estimator/time/efficiency.h"
#include "job/fields/job_fields.h"
#include "job/stacks/stacks.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

Job trainer_job(const char* optimizer, const Cluster& cluster) {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("transformers"), cluster));
  for (const auto& [field, value] : {std::pair{"optimizer", optimizer},
                                     {"checkpointing", "full"},
                                     {"storage_dtype", "bf16"},
                                     {"state_dtype", "bf16"}}) {
    job_field_named(field).set(job, value);
  }
  return job;
}

Estimate estimate_with(const char* optimizer, const Cluster& cluster) {
  ModelSpec spec = testing::llama_8b();
  spec.stored_dtype = Dtype::bf16;  // as the job has them, so that loading takes no host memory
  return estimate(spec, trainer_job(optimizer, cluster), cluster, {.suggestions = false});
}

constexpr std::int64_t kEmbedding = 128256LL * 4096, kNorms = 65LL * 4096, kWeights = 8030261248;

TEST_CASE("paged states: two averages of what has 100,000 elements, in fp32 or in 8 bits but for embeddings") {
  const Cluster cluster = parse_cluster("1xH100-80GB");
  CHECK(estimate_with("adamw:paged", cluster).ranks.front().managed == Bytes{8 * (kWeights - kNorms)});
  CHECK(estimate_with("adamw-8bit:paged", cluster).ranks.front().managed ==
        Bytes{2 * (kWeights - kNorms - kEmbedding) + 8 * kEmbedding});
  CHECK(estimate_with("adamw-8bit:fused", cluster).ranks.front().managed == Bytes{});
}

TEST_CASE("paged states are no part of the total, and in host memory as far as the card has no room beside it") {
  for (const char* gpus : {"1xA100-40GB", "1xH100-80GB"}) {
    CAPTURE(gpus);
    Cluster cluster = parse_cluster(gpus);
    const Estimate paged = estimate_with("adamw-8bit:paged", cluster);
    const RankEstimate& rank = paged.ranks.front();
    const Bytes states = rank.breakdown.categories[static_cast<std::size_t>(Category::optimizer_state)];
    // Scales of 256 elements for two averages, the norms' codes, and two tables.
    CHECK(states <= Bytes{2 * 4 * (kWeights / 256) + 2 * kNorms + 2 * 4 * 256});
    CHECK(managed_on_card(rank, cluster.card.memory) + rank.host == rank.managed);
    CHECK(paged.host_bytes == rank.host);
    CHECK((rank.host.n == 0) == (rank.total + rank.managed <= cluster.card.memory));
  }
}

TEST_CASE("a host without room for the pages that the card can't hold: the job does not fit") {
  Cluster cluster = parse_cluster("1xA100-40GB");
  const Bytes host = estimate_with("adamw:paged", cluster).host_bytes;
  REQUIRE(host > Bytes{});
  cluster.host_memory = host;
  CHECK(estimate_with("adamw:paged", cluster).verdict == Verdict::fits);
  cluster.host_memory = host - Bytes{1};
  const Estimate beyond = estimate_with("adamw:paged", cluster);
  CHECK(beyond.verdict == Verdict::does_not_fit);
  CHECK_MESSAGE(beyond.why.starts_with("host memory: "), beyond.why);
}

Job own_job(const char* optimizer) {
  Job job = unresolved_job();
  job_field_named("checkpointing").set(job, "full");
  job_field_named("optimizer").set(job, optimizer);
  return job;
}

Estimate estimate_own(const char* optimizer, const Cluster& cluster) {
  return estimate(testing::llama_8b(), own_job(optimizer), cluster,
                  {.suggestions = false, .speed_with = &efficiency_of(cluster)});
}

double step_seconds(const char* optimizer, const Cluster& cluster) {
  return estimate_own(optimizer, cluster).speed.value().time.step_seconds;
}

std::int64_t states_on_card(const Estimate& e) {
  return e.ranks.front().breakdown.categories[static_cast<std::size_t>(Category::optimizer_state)].n;
}

TEST_CASE("the engine's paged states: each rank's share of what fused keeps on the card, but for the counts") {
  for (const char* gpus : {"1xH100-80GB", "4xH100-80GB"}) {
    CAPTURE(gpus);
    const Cluster cluster = parse_cluster(gpus);
    for (const char* name : {"adamw", "adamw-8bit"}) {
      CAPTURE(name);
      const Estimate fused = estimate_own(name, cluster);
      const Estimate paged = estimate_own((std::string(name) + ":paged").c_str(), cluster);
      CHECK(states_on_card(paged) == 34 * 4);  // a count for each of 32 layers, the embedding and the head
      CHECK(paged.ranks.front().managed.n == states_on_card(fused) - 34 * 4);
      CHECK(paged.ranks.front().total < fused.ranks.front().total);
    }
  }
}

TEST_CASE("updates of paged states take longer only where the card has no room for all of them") {
  Cluster cluster = parse_cluster("8xH100-80GB");
  CHECK(step_seconds("adamw:paged", cluster) == step_seconds("adamw", cluster));
  cluster = parse_cluster("1xH100-80GB");
  const Estimate paged = estimate_own("adamw:paged", cluster);
  CHECK(paged.ranks.front().managed > managed_on_card(paged.ranks.front(), cluster.card.memory));
  CHECK(step_seconds("adamw:paged", cluster) > step_seconds("adamw", cluster));
}

TEST_CASE("paged states with offloaded ones, or on CPU ranks, are refused with what to use instead") {
  Job both = own_job("adamw:paged");
  job_field_named("offload").set(both, "optimizer");
  const auto why = [](const Job& job, const char* gpus) {
    const Estimate e = estimate(testing::llama_8b(), job, parse_cluster(gpus), {.suggestions = false});
    CHECK(e.verdict == Verdict::not_modelled);
    return e.why;
  };
  CHECK(why(both, "1xA100-40GB").find("--offload optimizer with --optimizer adamw:paged") != std::string::npos);
  CHECK(why(own_job("adamw:paged"), "2xcpu-64GiB").find("use adamw:fused") != std::string::npos);
}

TEST_CASE("paged states of bitsandbytes have rules where it works, and the answer elsewhere says where that is") {
  const auto why = [](Job job, const char* gpus) {
    const Estimate e = estimate(testing::llama_8b(), job, parse_cluster(gpus), {.suggestions = false});
    CHECK(e.verdict == Verdict::not_modelled);
    return e.why;
  };
  for (const char* optimizer : {"adamw:paged", "adamw-8bit:paged"}) {
    const Job sharded = trainer_job(optimizer, parse_cluster("2xA100-40GB"));
    CHECK(why(sharded, "2xA100-40GB").starts_with(std::string("--optimizer ") + optimizer));
  }
}

}  // namespace
}  // namespace vramfit
