// Mixtures of experts under transformers' Trainer.
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

ModelSpec mixture(std::int64_t experts = 8, std::int64_t ffn = 96, const char* more = "") {
  return parse_config(fmt::format(R"({{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": {},
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 2050,
      "num_local_experts": {}{}}})",
                                  ffn, experts, more),
                      "config.json");
}

ModelSpec gpt_oss(const char* more = "") {
  return parse_config(fmt::format(R"({{"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 2050,
      "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 64{}}})",
                                  more),
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

program::Program made(const ModelSpec& spec, const char* gpus, const Fields& fields) {
  const Cluster cluster = parse_cluster(gpus);
  std::vector<std::string> notes;
  const Job job = resolve_job(of_trainer(fields), spec, cluster, notes);
  return program::make_program(
      {.graph = training_graph(spec, job), .job = job, .device = cluster.card.device, .coords = {}});
}

/// Bytes of all buffers whose label ends so.
std::vector<Bytes> sizes_of(const program::Program& program, std::string_view label) {
  std::vector<Bytes> sizes;
  for (const program::Buffer& buffer : program.main.buffers) {
    if (program.labels.at(static_cast<std::size_t>(buffer.label)).ends_with(label)) sizes.push_back(buffer.bytes);
  }
  return sizes;
}

std::string refusal(const ModelSpec& spec, const Fields& fields, const char* gpus = "1xH100-80GB") {
  return estimate(spec, of_trainer(fields), parse_cluster(gpus), {.suggestions = false}).lacking;
}

}  // namespace

TEST_CASE("each token's rows are there once for each of its experts, and weights of all experts are one parameter") {
  const program::Program program = made(mixture(), "1xH100-80GB", {{"precision", "fp32"}, {"attention", "auto"}});
  constexpr std::int64_t kRows = 128 * 2, kFloat = 4;
  const auto is_all = [](const std::vector<Bytes>& sizes, std::int64_t bytes) {
    return !sizes.empty() && std::ranges::all_of(sizes, [&](Bytes size) { return size == Bytes{bytes}; });
  };
  CHECK(is_all(sizes_of(program, "silu"), kRows * 96 * kFloat));
  CHECK(is_all(sizes_of(program, "sorted"), kRows * 8));
  // Of two layers; there are the optimizer's counts of the same name.
  CHECK(std::ranges::count(sizes_of(program, "experts.gate_up_proj"), Bytes{8 * 2 * 96 * 64 * kFloat}) >= 2);
  CHECK(sizes_of(program, "cutlass workspace").empty());
}

TEST_CASE("CUTLASS' workspace for groups is there in bf16 on compute capability 9.0 alone, and not under autocast") {
  const Fields pure{{"precision", "bf16-pure"}};
  const std::vector<Bytes> workspaces = sizes_of(made(mixture(), "1xH100-80GB", pure), "cutlass workspace");
  REQUIRE_FALSE(workspaces.empty());
  CHECK(workspaces.front() == Bytes{132 * 512});
  CHECK(sizes_of(made(mixture(), "1xRTX4090", pure), "cutlass workspace").empty());
  CHECK(sizes_of(made(mixture(), "1xH100-80GB", {}), "cutlass workspace").empty());
}

TEST_CASE("scores of gpt-oss' queries have one for the head's sink, and each row of an expert its biases") {
  const program::Program program = made(gpt_oss(), "1xH100-80GB", {{"precision", "fp32"}, {"attention", "auto"}});
  constexpr std::int64_t kRows = 128 * 2, kFloat = 4, kScores = 4 * 128 * 129;
  const auto has = [&](const char* label, std::int64_t bytes) {
    const std::vector<Bytes> sizes = sizes_of(program, label);
    return std::ranges::find(sizes, Bytes{bytes}) != sizes.end();
  };
  CHECK(has("softmax", kScores * kFloat));
  CHECK(has("max indices", 4 * 128 * 8));
  CHECK(has("rows of a parameter", kRows * 2 * 96 * kFloat));
  CHECK(has("rows of a parameter", kRows * 64 * kFloat));
  CHECK(has("sum of sinks", 4 * kFloat));
}

TEST_CASE("what the Trainer's experts have no rules for is named") {
  const auto names = [](const std::string& text, const char* what) {
    CAPTURE(text);
    return text.find(what) != std::string::npos;
  };
  CHECK(refusal(mixture(), {}).empty());
  CHECK(names(refusal(mixture(), {{"method", "lora"}}), "experts with --method lora"));
  CHECK(names(refusal(gpt_oss(), {{"method", "qlora"}, {"attention", "auto"}}), "experts with --method qlora"));
  CHECK(refusal(gpt_oss(), {{"method", "lora"}, {"attention", "auto"}}).empty());
  CHECK(names(refusal(gpt_oss(), {}), "--attention flash of a model with attention sinks"));
  CHECK(refusal(gpt_oss(), {{"attention", "auto"}}).empty());
  CHECK(names(refusal(gpt_oss(R"(, "output_router_logits": true)"), {}), "output_router_logits of gpt_oss"));
  CHECK(names(refusal(mixture(), {{"optimizer", "adafactor"}}), "experts with --optimizer adafactor"));
  CHECK(names(refusal(mixture(), {{"modeling", "trl"}}), "--modeling trl for experts"));
  CHECK(refusal(mixture(), {{"modeling", "accelerate"}}).empty());
  CHECK(names(refusal(mixture(400), {}), "400 experts or more"));
  CHECK(names(refusal(mixture(8, 96, R"(, "num_experts_per_tok": 1)"), {}), "experts of which each token has one"));
  CHECK(names(refusal(mixture(8, 98), {}), "rows of a multiple of 16 bytes"));
  CHECK(names(refusal(mixture(), {{"precision", "bf16-pure"}}, "1xB200"), "compute capability 10.x"));
  CHECK(refusal(mixture(), {}, "1xB200").empty());
  CHECK(names(refusal(mixture(8, 96, R"(, "output_router_logits": true)"), {}), "output_router_logits of mixtral"));
  CHECK(names(refusal(mixture(8, 96, R"(, "router_jitter_noise": 0.1)"), {}), "router_jitter_noise of mixtral"));
  const Estimate own = estimate(mixture(), unresolved_job(), parse_cluster("1xH100-80GB"), {.suggestions = false});
  CHECK(names(own.lacking, "experts (model_type mixtral)"));
}

}  // namespace vramfit
