#include "estimator/estimate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "tests/support/job_settings.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::job_with;
using testing::Settings;

namespace {

Estimate estimate_of(const ModelSpec& spec, const char* cluster, const Settings& settings = {}) {
  return estimate(spec, job_with(settings), parse_cluster(cluster), {});
}

}  // namespace

TEST_CASE("suggestions are single changes that save what they say") {
  const Settings settings{{"seq_len", "8192"}, {"micro_batch", "2"}};
  const Estimate e = estimate_of(testing::llama_8b(), "8xH100-80GB", settings);
  REQUIRE(!e.suggestions.empty());
  CHECK(e.suggestions.size() <= 6);
  CHECK(std::ranges::is_sorted(e.suggestions, std::greater{}, &Suggestion::saved));
  for (const Suggestion& s : e.suggestions) {
    CHECK(s.total_after + s.saved == e.ranks[0].total);
    if (s.change != "--checkpointing full") continue;
    const Estimate after = estimate_of(testing::llama_8b(), "8xH100-80GB",
                                       {{"seq_len", "8192"}, {"micro_batch", "2"}, {"checkpointing", "full"}});
    CHECK(after.ranks.at(0).total == s.total_after);
    CHECK((after.verdict == Verdict::fits) == s.fits);
  }
  CHECK(e.suggestions[0].change == "--checkpointing full");
}

TEST_CASE("suggestions for PyTorch's runtimes count the states that the first step makes") {
  for (const auto& [modeling, precision] : {std::pair{"transformers", "bf16-mixed"}, {"torchtitan", "bf16-pure"}}) {
    CAPTURE(modeling);
    Settings settings{{"runtime", "pytorch"},
                      {"modeling", modeling},
                      {"precision", precision},
                      {"attention", "flash"},
                      {"seq_len", "2048"}};
    const Estimate e = estimate_of(testing::llama_8b(), "1xH100-80GB", settings);
    const auto full = std::ranges::find(e.suggestions, "--checkpointing full", &Suggestion::change);
    REQUIRE_MESSAGE(full != e.suggestions.end(), e.why);
    settings.emplace_back("checkpointing", "full");
    CHECK(full->total_after == estimate_of(testing::llama_8b(), "1xH100-80GB", settings).ranks.front().total);
  }
}

TEST_CASE("states of 8 bits are suggested beside AdamW, with what they save, and only there") {
  const auto of_states = [](const Estimate& e) {
    return std::ranges::find(e.suggestions, "--optimizer adamw-8bit (changes the result)", &Suggestion::change);
  };
  const Estimate e = estimate_of(testing::llama_8b(), "8xH100-80GB", {});
  REQUIRE(of_states(e) != e.suggestions.end());
  const Estimate after = estimate_of(testing::llama_8b(), "8xH100-80GB", {{"optimizer", "adamw-8bit"}});
  CHECK(of_states(e)->total_after == after.ranks.at(0).total);
  CHECK(of_states(e)->saved > 5 * kGiB);
  CHECK(of_states(after) == after.suggestions.end());
}

TEST_CASE("weights of few bits are suggested where matrices are frozen, and one micro-batch less where there are two") {
  const auto with_start = [](const Estimate& e, std::string_view start) {
    return std::ranges::find_if(e.suggestions, [&](const Suggestion& s) { return s.change.starts_with(start); });
  };
  const Estimate full = estimate_of(testing::llama_8b(), "1xH100-80GB", {{"precision", "bf16-pure"}});
  CHECK(with_start(full, "--quantization") == full.suggestions.end());
  const Estimate adapted = estimate_of(testing::llama_8b(), "1xH100-80GB", {{"method", "lora"}});
  const auto quantized = with_start(adapted, "--quantization int8 ");
  REQUIRE(quantized != adapted.suggestions.end());
  CHECK(quantized->total_after ==
        estimate_of(testing::llama_8b(), "1xH100-80GB", {{"method", "lora"}, {"quantization", "int8"}}).ranks[0].total);
  const Estimate two =
      estimate_of(testing::llama_8b(), "8xH100-80GB", {{"grad_accum", "2"}, {"checkpointing", "full"}});
  const auto one = with_start(two, "--global-batch 8 --grad-accum 1 ");
  REQUIRE(one != two.suggestions.end());
  CHECK(one->total_after ==
        estimate_of(testing::llama_8b(), "8xH100-80GB", {{"checkpointing", "full"}}).ranks[0].total);
}

TEST_CASE("a suggested precision leaves alone the dtypes that were set") {
  Settings settings{{"compute_dtype", "fp32"}, {"output_dtype", "fp32"}};
  const Estimate e = estimate_of(testing::llama_8b(), "8xH100-80GB", settings);
  const auto pure =
      std::ranges::find_if(e.suggestions, [](const Suggestion& s) { return s.change.starts_with("--precision"); });
  REQUIRE(pure != e.suggestions.end());
  settings.insert(settings.begin(), {"precision", "bf16-pure"});  // before its dtypes, as flags are applied
  CHECK(estimate_of(testing::llama_8b(), "8xH100-80GB", settings).ranks.at(0).total == pure->total_after);
}

TEST_CASE("a suggestion of more cards keeps the card as it was given, and is read back") {
  const Estimate e = estimate_of(testing::llama_8b(), "2xH100-80GB@95.04GiB");
  const auto more =
      std::ranges::find_if(e.suggestions, [](const Suggestion& s) { return s.change.starts_with("--gpus"); });
  REQUIRE(more != e.suggestions.end());
  CHECK(more->change == "--gpus 4xH100-80GB@95.04GiB");
}

}  // namespace vramfit
