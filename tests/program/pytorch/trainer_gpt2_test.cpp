// GPT-2 under transformers' Trainer.
#include <doctest/doctest.h>

#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "model_specs/config.h"
#include "tests/program/pytorch/trainer_questions.h"

namespace vramfit {
namespace {

using testing::count_of;
using testing::refusal;

constexpr std::int64_t kGpt2Rows = 128, kGpt2Width = 64, kGpt2Inner = 256, kGpt2Heads = 4;

ModelSpec gpt2(const char* more = "") {
  return parse_config(fmt::format(R"({{"model_type": "gpt2", "n_embd": {}, "n_layer": 2, "n_head": {},
      "n_positions": {}, "vocab_size": 2050{}}})",
                                  kGpt2Width, kGpt2Heads, kGpt2Rows, more),
                      "config.json");
}

}  // namespace

TEST_CASE("dropout keeps a byte for each element, and none where the configuration says 0") {
  constexpr std::int64_t kHidden = kGpt2Rows * kGpt2Width, kScores = kGpt2Rows * kGpt2Rows * kGpt2Heads;
  CHECK(count_of(gpt2(), {}, "dropout mask", kHidden) >= 5);  // the embedding's, and two of each block
  CHECK(count_of(gpt2(), {{"attention", "math"}}, "dropout mask", kScores) >= 2);
  const ModelSpec none = gpt2(R"(, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0)");
  CHECK(count_of(none, {{"attention", "math"}}, "dropout mask", kHidden) == 0);
  CHECK(count_of(none, {{"attention", "math"}}, "dropout mask", kScores) == 0);
}

TEST_CASE("gelu_new is many calls, in fp32 under autocast, and gelu_pytorch_tanh is one") {
  constexpr std::int64_t kWide = kGpt2Rows * kGpt2Inner * 4;
  CHECK(count_of(gpt2(), {}, "mlp: tanh", kWide) >= 2);
  CHECK(count_of(gpt2(R"(, "activation_function": "gelu_pytorch_tanh")"), {}, "mlp: tanh", kWide) == 0);
  CHECK(count_of(gpt2(R"(, "activation_function": "gelu_pytorch_tanh")"), {}, "mlp: gelu", kWide / 2) >= 2);
}

TEST_CASE("what the Trainer's GPT-2 has no rules for is named") {
  const auto names = [](const std::string& text, const char* what) {
    CAPTURE(text);
    return text.find(what) != std::string::npos;
  };
  CHECK(refusal(gpt2(), {}).empty());
  CHECK(names(refusal(gpt2(), {{"method", "lora"}, {"dora", "on"}}), "--dora on over Conv1D"));
  CHECK(refusal(gpt2(), {{"method", "lora"}}).empty());
  CHECK(refusal(gpt2(), {{"modeling", "trl"}}).empty());
  CHECK(refusal(gpt2(), {{"modeling", "accelerate"}}).empty());
  CHECK(refusal(gpt2(), {{"method", "qlora"}}).empty());
  for (const char* stage : {"full-shard", "shard-grad-op", "shard-optimizer"}) {
    const testing::Fields fields{{"runtime", "deepspeed"}, {"sharding", stage}, {"reduce_dtype", "bf16"}};
    CHECK(names(refusal(gpt2(), fields), "GPT-2 with --runtime deepspeed"));
  }
  CHECK_THROWS_WITH_AS(count_of(gpt2(), {{"compile", "on"}}, "", 0), doctest::Contains("GPT-2 with --compile on"),
                       NotModelled);
  CHECK(names(refusal(gpt2(R"(, "activation_function": "relu")"), {}), "GPT-2 with relu"));
  CHECK(names(refusal(gpt2(R"(, "resid_pdrop": 1.0)"), {}), "dropout of 1"));
  const ModelSpec upcasts = gpt2(R"(, "reorder_and_upcast_attn": true)");
  CHECK(refusal(upcasts, {}).empty());
  CHECK(names(refusal(upcasts, {{"attention", "math"}}), "reorder_and_upcast_attn"));
}

}  // namespace vramfit
