// GPT-2 under transformers' Trainer.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/config.h"
#include "program/make_program.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

using Fields = std::vector<std::pair<const char*, const char*>>;

constexpr std::int64_t kRows = 128, kWidth = 64, kInner = 256, kHeads = 4;

ModelSpec gpt2(const char* more = "") {
  return parse_config(fmt::format(R"({{"model_type": "gpt2", "n_embd": {}, "n_layer": 2, "n_head": {},
      "n_positions": {}, "vocab_size": 2050{}}})",
                                  kWidth, kHeads, kRows, more),
                      "config.json");
}

Job of_trainer(const Fields& more) {
  Job job = unresolved_job();
  for (const Fields& fields : {Fields{{"runtime", "pytorch"},
                                      {"modeling", "transformers"},
                                      {"precision", "bf16-mixed"},
                                      {"attention", "flash"},
                                      {"seq_len", "128"}},
                               more}) {
    for (const auto& [name, value] : fields) job_field_named(name).set(job, value);
  }
  return job;
}

/// How many buffers of `bytes` have a label that ends so.
std::ptrdiff_t count_of(const ModelSpec& spec, const Fields& fields, std::string_view label, std::int64_t bytes) {
  const Cluster cluster = parse_cluster("1xH100-80GB");
  std::vector<std::string> notes;
  const Job job = resolve_job(of_trainer(fields), spec, cluster, notes);
  const program::Program program = program::make_program(
      {.graph = training_graph(spec, job), .job = job, .device = cluster.card.device, .coords = {}});
  return std::ranges::count_if(program.main.buffers, [&](const program::Buffer& buffer) {
    return buffer.bytes == Bytes{bytes} && program.labels.at(static_cast<std::size_t>(buffer.label)).ends_with(label);
  });
}

std::string refusal(const ModelSpec& spec, const Fields& fields) {
  return estimate(spec, of_trainer(fields), parse_cluster("1xH100-80GB"), {.suggestions = false}).lacking;
}

}  // namespace

TEST_CASE("dropout keeps a byte for each element, and none where the configuration says 0") {
  constexpr std::int64_t kHidden = kRows * kWidth, kScores = kRows * kRows * kHeads;
  CHECK(count_of(gpt2(), {}, "dropout mask", kHidden) >= 5);  // the embedding's, and two of each block
  CHECK(count_of(gpt2(), {{"attention", "math"}}, "dropout mask", kScores) >= 2);
  const ModelSpec none = gpt2(R"(, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0)");
  CHECK(count_of(none, {{"attention", "math"}}, "dropout mask", kHidden) == 0);
  CHECK(count_of(none, {{"attention", "math"}}, "dropout mask", kScores) == 0);
}

TEST_CASE("gelu_new is many calls, in fp32 under autocast, and gelu_pytorch_tanh is one") {
  constexpr std::int64_t kWide = kRows * kInner * 4;
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
  CHECK(names(refusal(gpt2(), {{"modeling", "trl"}}), "a model with learned positions"));
  CHECK(names(refusal(gpt2(), {{"method", "qlora"}}), "GPT-2 with --method qlora"));
  CHECK(names(refusal(gpt2(R"(, "activation_function": "relu")"), {}), "GPT-2 with relu"));
  CHECK(names(refusal(gpt2(R"(, "resid_pdrop": 1.0)"), {}), "dropout of 1"));
  const ModelSpec upcasts = gpt2(R"(, "reorder_and_upcast_attn": true)");
  CHECK(refusal(upcasts, {}).empty());
  CHECK(names(refusal(upcasts, {{"attention", "math"}}), "reorder_and_upcast_attn"));
}

}  // namespace vramfit
