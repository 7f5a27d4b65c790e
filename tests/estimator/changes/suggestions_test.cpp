#include "estimator/changes/suggestions.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/stacks/stacks.h"
#include "program/stages/adapters.h"
#include "tests/support/job_settings.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::job_with;
using testing::Settings;

namespace {

Estimate estimate_of(const ModelSpec& spec, const char* cluster, const Settings& settings = {}) {
  return estimate(spec, job_with(settings), parse_cluster(cluster), {});
}

/// Of the job with `change`, a suggestion's flags, added.
Estimate estimate_followed(const ModelSpec& spec, std::string gpus, const Settings& settings,
                           const std::string& change) {
  Job job = job_with(settings);
  std::istringstream words(change.substr(0, change.find(" (")));
  for (std::string flag, value; words >> flag >> value;) {
    const auto row = std::ranges::find(job_fields(), flag, [](const JobField& field) { return flag_of(field); });
    if (row == job_fields().end()) {
      REQUIRE(flag == "--gpus");
      gpus = value;
    } else {
      set_job_field(job, *row, value, flag);
    }
  }
  return estimate(spec, job, parse_cluster(gpus), {.suggestions = false});
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
    CHECK(after.verdict == s.verdict);
  }
  CHECK(e.suggestions[0].change == "--checkpointing full");
}

TEST_CASE("added to the flags that were given, a suggestion's flags make what it says, whatever the defaults") {
  struct Asked {
    ModelSpec spec;
    const char* gpus;
    Settings settings;
  };
  const std::vector<Asked> all{
      {testing::llama_8b(), "4xRTX4090", {}},
      {testing::llama_8b(), "1xA100-80GB", {{"seq_len", "2048"}, {"micro_batch", "2"}}},
      {testing::llama_8b(), "2xA100-80GB", {{"seq_len", "1536"}, {"freeze", "head"}}},
      {testing::llama_8b(), "2xA100-80GB", {{"loss", "full"}, {"micro_batch", "4"}}},
  };
  int other_losses = 0;
  for (const Asked& asked : all) {
    const Estimate before = estimate_of(asked.spec, asked.gpus, asked.settings);
    CHECK(!before.suggestions.empty());
    for (const Suggestion& s : before.suggestions) {
      CAPTURE(s.change);
      const Estimate after = estimate_followed(asked.spec, asked.gpus, asked.settings, s.change);
      CHECK(after.ranks.at(0).total == s.total_after);
      CHECK(after.verdict == s.verdict);
      if (!s.change.starts_with("--loss") && loss_options(after.job) != loss_options(before.job)) ++other_losses;
    }
  }
  CHECK(other_losses > 0);
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

TEST_CASE(
    "where a library has copies of a model by another runtime than its parts, parts are suggested as it has them") {
  const Cluster cluster = parse_cluster("8xH100-80GB");
  const auto on_stack_with = [&](const char* stack, bool is_copied, const Settings& others) {
    Settings all;
    for (const StackDefault& each : defaults_of(stack_named(stack), cluster, is_copied)) {
      all.emplace_back(each.field.data(), each.value.data());
    }
    all.insert(all.end(), others.begin(), others.end());
    return job_with(all);
  };
  const auto parts_of = [](const Estimate& e) {
    return std::ranges::find(e.suggestions, "--sharding full-shard", &Suggestion::change);
  };
  const Settings others{{"seq_len", "2048"}, {"precision", "bf16-mixed"}, {"allocator", "expandable"}};
  Settings copied = others;
  copied.emplace_back("sharding", "no-shard");
  for (const char* stack : {"transformers", "trl", "trl-dpo", "accelerate"}) {
    CAPTURE(stack);
    const Estimate e = estimate(testing::llama_8b(), on_stack_with(stack, true, copied), cluster, {});
    REQUIRE(e.verdict == Verdict::does_not_fit);
    const auto parts = parts_of(e);
    REQUIRE(parts != e.suggestions.end());
    const Estimate after =
        estimate(testing::llama_8b(), on_stack_with(stack, false, others), cluster, {.suggestions = false});
    CHECK(after.ranks.front().total == parts->total_after);
    CHECK(after.verdict == parts->verdict);
    CHECK(parts->verdict == Verdict::fits);
  }
  // accelerate makes the parts fp32, so that FSDP2 has no rules for others.
  copied.insert(copied.end(), {{"storage_dtype", "bf16"}, {"state_dtype", "bf16"}});
  const Estimate e = estimate(testing::llama_8b(), on_stack_with("transformers", true, copied), cluster, {});
  REQUIRE(!e.ranks.empty());
  CHECK(parts_of(e) == e.suggestions.end());
}

TEST_CASE(
    "where adapters don't fit under PyTorch, weights in 4 bits are suggested, and frozen ones in 16 instead of 32") {
  for (const auto& [modeling, changes] :
       {std::pair{"trl", std::vector<std::string>{"--method qlora", "--frozen-dtype bf16"}},
        std::pair{"transformers", std::vector<std::string>{"--method qlora"}}}) {
    const Settings settings{{"runtime", "pytorch"},    {"modeling", modeling}, {"method", "lora"},
                            {"checkpointing", "full"}, {"seq_len", "2048"},    {"micro_batch", "2"}};
    const Estimate e = estimate_of(testing::llama_8b(), "1xRTX4090", settings);
    REQUIRE(e.verdict == Verdict::does_not_fit);
    std::vector<std::string> said;
    for (const Suggestion& each : e.suggestions) {
      if (!each.change.starts_with("--method") && !each.change.starts_with("--frozen")) continue;
      CHECK(each.change.ends_with(" (changes the result)"));
      said.push_back(each.change.substr(0, each.change.find(" (")));
      const Estimate after = estimate_followed(testing::llama_8b(), "1xRTX4090", settings, each.change);
      CHECK(after.ranks.front().total == each.total_after);
      CHECK(after.verdict == Verdict::fits);
    }
    CHECK(said == changes);
  }
}

TEST_CASE("offload is suggested where the job doesn't fit and the nodes' host memory holds it, with what it takes") {
  const auto offloaded = [](const Estimate& e) {
    return std::ranges::find_if(e.suggestions, [](const Suggestion& s) { return s.change.starts_with("--offload "); });
  };
  const auto with_stack = [](const char* stack) {
    Settings all{{"seq_len", "4096"}, {"checkpointing", "full"}};
    for (const StackDefault& each : defaults_of(stack_named(stack), parse_cluster("2xL40S"))) {
      all.emplace_back(each.field.data(), each.value.data());
    }
    return all;
  };
  struct Asked {
    const char *gpus, *kind;
    Settings settings;
  };
  for (const Asked& asked : {Asked{"1xH100-80GB,host=200GiB", "--offload optimizer (", {{"seq_len", "4096"}}},
                             Asked{"1xH100-80GB", "--offload optimizer (", {{"seq_len", "4096"}}},
                             Asked{"1xRTX4090", "--offload params (", {{"seq_len", "4096"}, {"checkpointing", "full"}}},
                             Asked{"2xL40S,host=256GiB", "--offload optimizer (", with_stack("deepspeed")},
                             Asked{"2xL40S,host=256GiB", "--offload params (", with_stack("transformers")}}) {
    CAPTURE(asked.gpus);
    CAPTURE(asked.kind);
    const Estimate e = estimate_of(testing::llama_8b(), asked.gpus, asked.settings);
    REQUIRE(offloaded(e) != e.suggestions.end());
    CHECK(offloaded(e)->change.starts_with(asked.kind));
    CHECK(offloaded(e)->verdict == Verdict::fits);
    const Estimate after = estimate_followed(testing::llama_8b(), asked.gpus, asked.settings, offloaded(e)->change);
    CHECK(after.ranks.front().total == offloaded(e)->total_after);
    CHECK(after.verdict == offloaded(e)->verdict);
    const std::int64_t gib = ceil_div(after.host_bytes.n, kGiB.n);
    CHECK(offloaded(e)->change.ends_with("(" + std::to_string(gib) + " GiB of host memory)"));
  }
  const Estimate small_host = estimate_of(testing::llama_8b(), "1xH100-80GB,host=16GiB", {{"seq_len", "4096"}});
  CHECK(offloaded(small_host) == small_host.suggestions.end());
  const Estimate fitting = estimate_of(testing::small_llama(), "1xH100-80GB,host=200GiB");
  REQUIRE(fitting.verdict == Verdict::fits);
  CHECK(offloaded(fitting) == fitting.suggestions.end());
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

TEST_CASE("suggestions are the same, however much of them is done beside the estimate") {
  const ModelSpec spec = testing::small_llama();
  const Settings settings{{"runtime", "pytorch"}, {"modeling", "transformers"}, {"micro_batch", "2"}};
  const Estimate e = estimate_of(spec, "1xT4", settings);
  REQUIRE(e.suggestions.size() > 2);
  const Graph graph = training_graph(spec, e.job);
  const program::Program program = program_of(graph, e.job, e.cluster, {});
  const auto text_of = [](const std::vector<Suggestion>& suggestions) {
    std::string text;
    for (const Suggestion& s : suggestions) {
      text += fmt::format("{}: {} {} {}\n", s.change, s.total_after.n, s.saved.n, static_cast<int>(s.verdict));
    }
    return text;
  };
  const std::optional<Suggestions::Needs> known = Suggestions::Needs{e, program};
  for (std::size_t done = 0;; ++done) {
    Suggestions suggestions(e, {.spec = spec, .graph = graph, .run = {}, .has_default_loss = true});
    REQUIRE(suggestions.parts_ahead() > 6);
    if (done > suggestions.parts_ahead()) break;
    CAPTURE(done);
    for (std::size_t part = 0; part < suggestions.parts_ahead(); ++part) {  // some too early
      if (part % 3 != 0 || part < done) suggestions.do_ahead(part, part < done ? known : std::nullopt);
    }
    CHECK(text_of(suggestions.made(e, program)) == text_of(e.suggestions));
  }
}

}  // namespace vramfit
