#include "estimator/card_requirements.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "estimator/least/least_while_updating.h"
#include "estimator/rank_estimate.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/catalog.h"
#include "program/not_modelled.h"
#include "program/readers/peak_activations.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"
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
        const JobOn job_on = [&](const Cluster& /*cluster*/) { return job; };
        const std::optional<RankEstimate> rank = FitOnCards(spec, job_on, {}).of({&e.cluster, 1}).front().rank;
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

namespace {

/// Of transformers' Trainer, with FSDP2 on several cards.
JobOn trainer_job(const Settings& settings) {
  return [job = job_with(settings)](const Cluster& cluster) {
    return on_stack(job, defaults_of(stack_named("transformers"), cluster));
  };
}

const CardRequirement& row_of(const CardRequirements& requirements, const std::string& card) {
  return *std::ranges::find(requirements.cards, card, [](const CardRequirement& row) { return row.card->name; });
}

/// Whether as many cards as are said hold the job, and no fewer.
void check_fewest(const ModelSpec& spec, const JobOn& job_on, const Card& card, const FewestCards& fewest) {
  for (std::int64_t cards = 1; cards <= std::min<std::int64_t>(fewest.cards, 8); cards *= 2) {
    const Cluster cluster = parse_cluster(fmt::format("{}x{}", cards, card.name));
    const Estimate e = estimate(spec, job_on(cluster), cluster, {.suggestions = false});
    CAPTURE(cluster.text);
    CHECK((e.verdict == Verdict::fits) == (cards == fewest.cards));
    if (cards != fewest.cards) continue;
    CHECK(e.ranks.front().total == fewest.total);
    CHECK(e.ranks.front().upper_bound == fewest.upper_bound);
  }
}

}  // namespace

TEST_CASE("each sort of cards has its own fewest, whatever larger cards of another generation take") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.2-3B"));
  const JobOn job_on = trainer_job({});
  const CardRequirements requirements = card_requirements(spec, job_on, {.suggestions = false});
  for (const char* name : {"QuadroRTX8000", "L40S", "A100-40GB", "RTX5090", "RTX4090"}) {
    CAPTURE(name);
    const CardRequirement& row = row_of(requirements, name);
    const bool holds = row.answer == CardAnswer::holds;
    REQUIRE((holds || row.fewest_changed.cards > 0));
    const JobOn changed_on = trainer_job({{"checkpointing", "full"}});
    check_fewest(spec, holds ? job_on : changed_on, *row.card, holds ? row.fewest : row.fewest_changed);
  }
  CHECK(row_of(requirements, "L40S").fewest.cards == 4);
  CHECK(row_of(requirements, "QuadroRTX8000").answer == CardAnswer::does_not);
  CHECK(requirements.change == "--checkpointing full");
}

TEST_CASE("cards on which some number has no rules, or that can't run the job, are no cards that are too small") {
  const ModelSpec experts = catalog_spec(*find_in_catalog("Qwen/Qwen3-30B-A3B"));
  const CardRequirements routed = card_requirements(experts, trainer_job({}), {.suggestions = false});
  REQUIRE_MESSAGE(!routed.cards.empty(), routed.one_card.why);
  const CardRequirement& b200 = row_of(routed, "B200-192GB");
  CHECK(b200.answer == CardAnswer::lacks_rules);
  CHECK(b200.why.find("experts in bf16 on compute capability 10.x") != std::string::npos);
  CHECK(b200.fewest_changed.cards == 0);
  CHECK(row_of(routed, "H200-141GB").answer != CardAnswer::lacks_rules);

  const Job fp8 = job_with({{"precision", "fp8"}});
  const CardRequirements requirements = card_requirements(catalog_spec(*find_in_catalog("llama-3.2-1b")),
                                                          [&](const Cluster&) { return fp8; }, {.suggestions = false});
  for (const char* name : {"A100-80GB", "T4", "V100-32GB"}) {
    CAPTURE(name);
    CHECK(row_of(requirements, name).answer == CardAnswer::cannot_run);
    CHECK(row_of(requirements, name).why.find("such a card (compute capability ") != std::string::npos);
  }
  CHECK(row_of(requirements, "H100-80GB").answer == CardAnswer::holds);
}

TEST_CASE("activations don't depend on the number of ranks, and live beside parameters and states") {
  const ModelSpec dense = testing::small_model("llama");
  ModelSpec experts = catalog_spec(*find_in_catalog("Qwen/Qwen3-30B-A3B"));
  experts.num_hidden_layers = 2;
  int compared = 0;
  for (const auto& [modeling, runtime] : {std::pair{"transformers", "pytorch-fsdp2"},
                                          {"transformers", "pytorch-fsdp1"},
                                          {"transformers", "pytorch-ddp"},
                                          {"transformers", "deepspeed"},
                                          {"trl-dpo", "pytorch-fsdp2"},
                                          {"trl-grpo", "deepspeed"},
                                          {"torchtitan", "pytorch-fsdp2"},
                                          {"torchtune", "pytorch-fsdp2"}}) {
    for (const ModelSpec* spec : std::initializer_list<const ModelSpec*>{&dense, &experts}) {
      for (const char* checkpointing : {"none", "full"}) {
        CAPTURE(modeling);
        CAPTURE(runtime);
        CAPTURE(spec->name);
        CAPTURE(checkpointing);
        std::optional<Bytes> before;
        for (const char* gpus : {"2xA100-80GB", "8xA100-80GB", "2x8xA100-80GB", "64x8xA100-80GB"}) {
          try {
            const Cluster cluster = parse_cluster(gpus);
            std::vector<std::string> notes;
            const Job job = resolve_job(job_with({{"modeling", modeling},
                                                  {"runtime", runtime},
                                                  {"checkpointing", checkpointing},
                                                  {"seq_len", "256"},
                                                  {"micro_batch", "4"}}),
                                        *spec, cluster, notes);
            require_rules(job, cluster);
            const Graph graph = training_graph(*spec, job);
            const program::Program program = program_of(graph, job, cluster, {});
            const Bytes activations = peak_activations(program);
            CHECK(activations >= before.value_or(Bytes{}));
            CHECK(least_between_updates(graph, job) + activations <= folded_peaks(program, Bytes{1}).requested);
            before = activations;
          } catch (const Error&) {
            break;  // no rules for these
          }
        }
        compared += before.has_value() ? 1 : 0;
      }
    }
  }
  CHECK(compared >= 10);
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
