#include "estimator/host_loading.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "estimator/estimate.h"
#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "job/stacks/stacks.h"
#include "model_specs/config.h"
#include "model_specs/parameters.h"
#include "program/stages/adapters.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

ModelSpec spec_stored_in(Dtype stored) {
  ModelSpec spec = testing::small_llama();
  spec.vocab_size = 4000;  // of fewer rows the embedding's gradient has no rules
  spec.stored_dtype = stored;
  return spec;
}

Estimate made(std::string_view stack, const std::string& gpus, const Fields& fields = {},
              const ModelSpec& spec = spec_stored_in(Dtype::bf16)) {
  const Cluster cluster = parse_cluster(gpus);
  const auto is_copied = std::ranges::find(fields, std::pair<std::string, std::string>{"sharding", "no-shard"});
  Job job = on_stack(unresolved_job(), defaults_of(stack_named(stack), cluster, is_copied != fields.end()));
  set_job_field(job, job_field_named("seq_len"), "512", "seq_len");
  for (const auto& [name, value] : fields) set_job_field(job, job_field_named(name), value, name);
  Estimate e = estimate(spec, job, cluster, {.suggestions = false});
  CAPTURE(e.why);
  REQUIRE(e.verdict != Verdict::not_modelled);
  return e;
}

HostLoading loading_of(const Estimate& e, const ModelSpec& spec = spec_stored_in(Dtype::bf16)) {
  return host_loading(spec, training_graph(spec, e.job), e.job);
}

Bytes host_in_load(const Estimate& e) {
  const std::vector<PhasePeak>& phases = e.ranks.front().phases;
  const auto load = std::ranges::find(phases, Phase::load, &PhasePeak::phase);
  REQUIRE(load != phases.end());
  return load->host;
}

bool says(const Estimate& e, std::string_view words) {
  return std::ranges::any_of(e.assumptions,
                             [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

std::int64_t parameters() { return parameter_count(spec_stored_in(Dtype::bf16)); }

}  // namespace

TEST_CASE("weights that keep the type of their file stay in its pages") {
  const Estimate e = made("transformers", "1xH100-80GB,host=64GiB", {{"precision", "bf16-pure"}});
  CHECK(e.host_bytes == Bytes{});
  CHECK(e.verdict == Verdict::fits);
  CHECK(says(e, "not counted in host memory: pages of mapped weight files"));
}

TEST_CASE("weights of another type than their file's are copied by each rank of a node") {
  const Bytes each = parameters() * Bytes{4};
  CHECK(made("transformers", "1xH100-80GB").host_bytes == each);
  CHECK(made("transformers", "8xH100-80GB").host_bytes == 8 * each);
  CHECK(made("transformers", "2x8xH100-80GB").host_bytes == 8 * each);
  CHECK(made("transformers", "2xH100-80GB", {{"sharding", "no-shard"}}).host_bytes == 2 * each);
  const Estimate stored_so = made("transformers", "8xH100-80GB", {}, spec_stored_in(Dtype::f32));
  CHECK(stored_so.host_bytes == Bytes{});
  CHECK(host_in_load(made("accelerate", "8xH100-80GB")) == each);
}

TEST_CASE("a node that lacks host memory for loading is told so") {
  const Estimate e = made("transformers", "8xH100-80GB,host=1MiB");
  CHECK(e.verdict == Verdict::does_not_fit);
  CHECK(e.why.starts_with("host memory while loading: "));
  CHECK(made("transformers", "8xH100-80GB,host=64GiB").verdict == Verdict::fits);
  CHECK(made("transformers", "8xH100-80GB").verdict == Verdict::fits);
}

TEST_CASE("what is offloaded lies there beside what was loaded") {
  const Estimate e = made("transformers", "2xH100-80GB", {{"offload", "params"}});
  CHECK(host_in_load(e) > parameters() * Bytes{4});
  CHECK(host_in_load(e) < parameters() * Bytes{8});
  const Estimate small = made("transformers", "2xH100-80GB,host=1MiB", {{"offload", "params"}});
  CHECK(small.why.starts_with("host memory while loading: "));
}

TEST_CASE("adapters are made on the host, beside weights that stay in their file") {
  const Estimate e = made("transformers", "8xH100-80GB", {{"method", "lora"}});
  const HostLoading loading = loading_of(e);
  CHECK(loading.copies == Bytes{});
  CHECK(loading.adapters > Bytes{});
  CHECK(e.host_bytes == 8 * loading.adapters);
  CHECK(loading_of(made("trl", "8xH100-80GB", {{"method", "lora"}})).copies == parameters() * Bytes{4});
}

TEST_CASE("weights in 4 bits are made on the GPU, and on the host for FSDP2") {
  const Fields qlora{{"method", "qlora"}, {"frozen_dtype", "bf16"}};
  CHECK(loading_of(made("transformers", "1xH100-80GB", qlora)).of_rank() == Bytes{});
  const HostLoading loading = loading_of(made("transformers", "2xH100-80GB", qlora));
  CHECK(loading.what == "quantized weights");
  CHECK(loading.copies > Bytes{});
  CHECK(loading.copies < parameters() * Bytes{1});
}

TEST_CASE("a reference is on the host beside the model that waits to be sharded") {
  const Bytes each = parameters() * Bytes{4};
  CHECK(loading_of(made("trl-dpo", "2xH100-80GB")).copies == 2 * each);
  CHECK(loading_of(made("trl-dpo", "2xH100-80GB", {{"sharding", "no-shard"}})).copies == each);
  CHECK(loading_of(made("trl-dpo", "1xH100-80GB")).copies == Bytes{});
}

TEST_CASE("torchtune puts the rows of queries and keys into another order") {
  const ModelSpec spec = spec_stored_in(Dtype::bf16);
  const HostLoading one = loading_of(made("torchtune", "1xH100-80GB"));
  CHECK(one.copies == 2 * spec.num_hidden_layers * spec.hidden_size * spec.head_dim *
                          (spec.num_attention_heads + spec.num_key_value_heads) * Bytes{1});
  CHECK(loading_of(made("torchtune", "2xH100-80GB", {{"precision", "fp32"}})).copies == parameters() * Bytes{4});
}

TEST_CASE("DeepSpeed converts to 16 bits on the host what a file has in others, and nothing with ZeRO-3") {
  const Fields zero2{{"sharding", "shard-grad-op"}};
  CHECK(loading_of(made("deepspeed", "2xH100-80GB", zero2)).copies == Bytes{});
  const ModelSpec in_fp32 = spec_stored_in(Dtype::f32);
  CHECK(loading_of(made("deepspeed", "2xH100-80GB", zero2, in_fp32), in_fp32).copies == parameters() * Bytes{2});
  CHECK(loading_of(made("deepspeed", "2xH100-80GB", {}, in_fp32), in_fp32).copies == Bytes{});
}

TEST_CASE("experts are put together in new memory") {
  const ModelSpec spec = parse_config(R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 2050,
      "num_local_experts": 8, "torch_dtype": "bfloat16"})",
                                      "mixtral");
  const Estimate e = made("transformers", "1xH100-80GB", {{"precision", "bf16-pure"}}, spec);
  const HostLoading loading = loading_of(e, spec);
  CHECK(loading.what == "experts put together");
  const std::int64_t matrix = 8 * 64 * 96, gates_and_ups = 2 * matrix;
  CHECK(loading.copies == (2 * (gates_and_ups + matrix) + gates_and_ups) * Bytes{2});
}

TEST_CASE("what has no rules is told, and the engine's program says itself what it takes") {
  CHECK(!loading_of(made("torchtitan", "8xH100-80GB")).unknown.empty());
  CHECK(says(made("trl-deepspeed", "8xH100-80GB,host=64GiB", {{"sharding", "shard-grad-op"}}), "TRL's default"));
  const Estimate engine = made("vramfit", "8xH100-80GB,host=64GiB");
  CHECK(engine.host_bytes < kMiB);
  CHECK(!says(engine, "not counted in host memory"));
}

}  // namespace vramfit
