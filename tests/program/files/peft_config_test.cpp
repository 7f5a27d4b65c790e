#include "program/files/peft_config.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>

#include "base/error.h"
#include "program/stages/adapters.h"
#include "tests/support/config_file.h"
#include "tests/support/mutate.h"

namespace vramfit {
namespace {

const std::string kLeast = R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6)";

PeftConfig config_with(const std::string& members) {
  return peft_config_from_json(kLeast + members + "}", "adapter_config.json");
}

std::string error_of(const std::string& text) {
  try {
    peft_config_from_json(text, "adapter_config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::string error_with(const std::string& members) { return error_of(kLeast + members + "}"); }

bool names(const std::string& error, const std::string& key) {
  CAPTURE(error);
  return error.starts_with("adapter_config.json: " + key) && error.find('\n') == std::string::npos;
}

Job lora_job(const std::vector<std::string>& targets) {
  Job job;
  job.method = Method::lora;
  job.lora = {.rank = 4, .alpha = 6.5, .dropout = 0.1, .targets = targets, .rank_stabilized = true};
  return job;
}

TEST_CASE("a configuration says rank, alpha, dropout, scale and targets") {
  const PeftConfig least = config_with("");
  CHECK(least.lora.rank == 4);
  CHECK(least.lora.alpha == 6);
  CHECK(least.lora.dropout == 0);
  CHECK_FALSE(least.lora.rank_stabilized);
  CHECK_FALSE(least.lora.has_magnitudes);
  CHECK(least.targets.empty());
  const PeftConfig more = config_with(
      R"(, "lora_dropout": 0.05, "use_rslora": true, "use_dora": true, "fan_in_fan_out": true, "target_modules": ["v_proj", "q_proj", "q_proj"])");
  CHECK(more.lora.dropout == 0.05);
  CHECK(more.lora.rank_stabilized);
  CHECK(more.lora.has_magnitudes);
  CHECK(more.fan_in_fan_out);
  CHECK(more.targets == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(config_with(R"(, "target_modules": "all-linear")").all_linear);
}

TEST_CASE("where more than ends of names says which modules have adapters, the weights alone say it") {
  for (const char* members : {R"(, "target_modules": ".*q_proj")", R"(, "target_modules": ["q*"])",
                              R"(, "target_modules": ["q_proj"], "layers_to_transform": [0])",
                              R"(, "target_modules": ["q_proj"], "exclude_modules": ["x"])",
                              R"(, "target_modules": "all-linear", "exclude_modules": "x")"}) {
    CAPTURE(members);
    const PeftConfig config = config_with(members);
    CHECK(config.targets.empty());
    CHECK_FALSE(config.all_linear);
  }
}

TEST_CASE(
    "what changes the adapters and isn't supported is refused by name where it is on, and passed where it is off") {
  for (const char* key : {"modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias", "layer_replication",
                          "trainable_token_indices", "target_parameters", "use_qalora", "a_key_of_tomorrow"}) {
    CAPTURE(key);
    for (const char* off : {"null", "false", "[]", "{}", "\"\""}) {
      CHECK(error_with(fmt::format(R"(, "{}": {})", key, off)).empty());
    }
    for (const char* on : {"true", "[1]", R"({"a": 1})", "\"x\"", "1"}) {
      CHECK(names(error_with(fmt::format(R"(, "{}": {})", key, on)), key));
    }
  }
  CHECK(error_with(R"(, "bias": "none", "init_lora_weights": "gaussian")").empty());
  CHECK(names(error_with(R"(, "bias": "all")"), "bias"));
  CHECK(names(error_with(R"(, "init_lora_weights": "pissa_niter_4")"), "init_lora_weights"));
  CHECK(names(error_of(R"({"peft_type": "IA3"})"), "peft_type"));
}

TEST_CASE("values out of range, of another type, or missing are refused by name") {
  CHECK(names(error_of(R"({"peft_type": "LORA", "lora_alpha": 6})"), "r"));
  CHECK(names(error_of(R"({"peft_type": "LORA", "r": 4})"), "lora_alpha"));
  CHECK(names(error_of(R"({"r": 4, "lora_alpha": 6})"), "peft_type"));
  for (const char* r : {"0", "-1", "2.5", "\"8\"", "9223372036854775807", "null", "[8]"}) {
    CAPTURE(r);
    CHECK(names(error_of(fmt::format(R"({{"peft_type": "LORA", "lora_alpha": 6, "r": {}}})", r)), "r"));
  }
  for (const char* alpha : {"0", "-3", "1e30", "true"}) {
    CAPTURE(alpha);
    CHECK(names(error_of(fmt::format(R"({{"peft_type": "LORA", "r": 4, "lora_alpha": {}}})", alpha)), "lora_alpha"));
  }
  CHECK(names(error_with(R"(, "lora_dropout": 1)"), "lora_dropout"));
  CHECK(names(error_with(R"(, "use_rslora": 1)"), "use_rslora"));
  CHECK(names(error_with(R"(, "use_dora": 1)"), "use_dora"));
  CHECK(names(error_with(R"(, "target_modules": [1])"), "target_modules"));
  CHECK_FALSE(error_with(R"(, "r": 8)").empty());  // twice
  CHECK_FALSE(error_of("[]").empty());
  CHECK_FALSE(error_of(std::string(std::size_t{2} << 20, ' ')).empty());
}

TEST_CASE("what is written reads back, and names the linears of each family by the ends that PEFT matches") {
  const auto targets = [](const char* family, const std::vector<std::string>& chosen) {
    return peft_targets(training_graph(testing::small_model(family), lora_job(chosen)));
  };
  CHECK(targets("gpt2", {}) == std::vector<std::string>{"c_attn", "c_fc", "c_proj"});
  CHECK(targets("phi3", {}) == std::vector<std::string>{"down_proj", "gate_up_proj", "o_proj", "qkv_proj"});
  // Other modules end alike, so the names are whole.
  CHECK(targets("llama", {"v_proj", "layers.1.*.q_proj"}) ==
        std::vector<std::string>{"model.layers.1.self_attn.q_proj", "v_proj"});
  const Job job = lora_job({});
  const Graph graph = training_graph(testing::small_model("gpt2"), job);
  const PeftConfig back = peft_config_from_json(peft_config_to_json(graph, job, "openai-community/gpt2"), "c");
  CHECK(back.lora.rank == 4);
  CHECK(back.lora.alpha == 6.5);
  CHECK(back.lora.dropout == 0.1);
  CHECK(back.lora.rank_stabilized);
  CHECK(back.fan_in_fan_out);
  CHECK(back.targets == std::vector<std::string>{"c_attn", "c_fc", "c_proj"});
}

TEST_CASE("mutated configurations are read or refused with one line") {
  std::mt19937_64 random(3);
  const Job job = lora_job({});
  const std::string text = peft_config_to_json(training_graph(testing::small_model("llama"), job), job, "base");
  int read = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string hostile = testing::mutate(text, random);
    try {
      const PeftConfig config = peft_config_from_json(hostile, "c");
      CHECK(config.lora.rank >= 1);
      CHECK(config.lora.alpha > 0);
      ++read;
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      ++refused;
    }
  }
  CHECK(read > 100);
  CHECK(refused > 100);
}

}  // namespace
}  // namespace vramfit
