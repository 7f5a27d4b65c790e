// BERT under transformers' Trainer.
#include <doctest/doctest.h>

#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "model_specs/config.h"
#include "tests/program/pytorch/trainer_questions.h"

namespace vramfit {
namespace {

using testing::count_of;
using testing::Fields;
using testing::refusal;

constexpr std::int64_t kBertRows = 128, kBertWidth = 64, kBertInner = 256, kBertHeads = 4, kBertVocabulary = 2050;

ModelSpec bert(const char* more = "") {
  return parse_config(fmt::format(R"({{"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": {},
      "num_hidden_layers": 2, "num_attention_heads": {}, "intermediate_size": {}, "max_position_embeddings": {},
      "vocab_size": {}{}}})",
                                  kBertWidth, kBertHeads, kBertInner, kBertRows, kBertVocabulary, more),
                      "config.json");
}

}  // namespace

TEST_CASE("each half of a block is dropped and normed behind its residual, and so is the embedding") {
  constexpr std::int64_t kHidden = kBertRows * kBertWidth;
  CHECK(count_of(bert(), {}, "dropout mask", kHidden) == 5);
  CHECK(count_of(bert(), {}, "layer_norm", 4 * kHidden) >= 6);  // the head's, too
  CHECK(count_of(bert(R"(, "hidden_dropout_prob": 0)"), {}, "dropout mask", kHidden) == 0);
}

TEST_CASE("attention in both directions on full rows needs no mask, in kernels and by products for each head") {
  constexpr std::int64_t kScores = kBertRows * kBertRows * kBertHeads;
  for (const char* attention : {"flash", "math"}) {
    CAPTURE(attention);
    const Fields fields{{"attention", attention}};
    CHECK(count_of(bert(), fields, "mask: all", 1) == 1);
    CHECK(count_of(bert(), fields, "allowed", kBertRows * kBertRows) == 0);
    CHECK(count_of(bert(), fields, "mask of scores", 4 * kBertRows * kBertRows) == 0);
  }
  CHECK(count_of(bert(), {{"attention", "math"}}, "attention: dropout mask", kScores) == 2);
  CHECK(count_of(bert(R"(, "attention_probs_dropout_prob": 0)"), {{"attention", "math"}}, "attention: dropout mask",
                 kScores) == 0);
}

TEST_CASE("labels aren't shifted, and the loss is a mean whatever the Trainer counted") {
  CHECK(count_of(bert(), {}, "padded labels", 8 * (kBertRows + 1)) == 0);
  CHECK(count_of(bert(), {{"precision", "bf16-pure"}}, "log_softmax", 2 * kBertRows * kBertVocabulary) == 1);
}

TEST_CASE("what the Trainer's BERT has no rules for is named") {
  const auto names = [](const std::string& text, const char* what) {
    CAPTURE(text);
    return text.find(what) != std::string::npos;
  };
  CHECK(refusal(bert(), {}).empty());
  CHECK(names(refusal(bert(), {{"modeling", "trl"}}), "BERT as a causal model, which TRL makes of it"));
  CHECK(refusal(bert(), {{"modeling", "accelerate"}}).empty());
  CHECK(refusal(bert(), {{"method", "lora"}}).empty());
  CHECK(names(refusal(bert(), {{"method", "qlora"}}), "BERT with --method qlora"));
  CHECK_THROWS_WITH_AS(count_of(bert(), {{"compile", "on"}}, "", 0), doctest::Contains("BERT with --compile on"),
                       NotModelled);
  CHECK(names(refusal(bert(R"(, "hidden_act": "relu")"), {}), "BERT with relu"));
  CHECK(names(refusal(bert(R"(, "chunk_size_feed_forward": 16)"), {}), "chunk_size_feed_forward of bert"));
  CHECK(names(refusal(bert(R"(, "hidden_dropout_prob": 1.0)"), {}), "dropout of 1"));
}

}  // namespace vramfit
