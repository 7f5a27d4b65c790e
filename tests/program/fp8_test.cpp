#include "program/ops/fp8.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "estimator/estimate.h"
#include "estimator/time/step_timer.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "tests/support/config_file.h"
#include "tests/support/models.h"

namespace vramfit {

namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

Estimate estimate_of(const std::string& model, const std::string& gpus, const Settings& settings) {
  Job job = unresolved_job();
  for (const auto& [name, value] : settings) set_job_field(job, job_field_named(name), value, name);
  return estimate(testing::small_model(model), job, parse_cluster(gpus), {});
}

bool says(const Estimate& e, const std::string& text) {
  return std::ranges::any_of(e.assumptions, [&](const std::string& a) { return a.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("an estimate in fp8 says how many linears multiply in FP8, and why not all") {
  const Settings fp8{{"precision", "fp8"}, {"seq_len", "32"}};
  CHECK(says(estimate_of("llama", "1xH100-80GB", fp8), "FP8 products in 21 of 21 linears of the layers"));
  CHECK(says(estimate_of("gpt2", "1xH100-80GB", fp8), "FP8 products in 0 of"));
  CHECK(says(estimate_of("gpt2", "1xH100-80GB", fp8), "their weights are stored transposed"));
  const Settings odd{{"precision", "fp8"}, {"seq_len", "31"}};
  CHECK(says(estimate_of("llama", "1xH100-80GB", odd), "0 of 21 linears of the layers: 31 rows"));
  CHECK_FALSE(says(estimate_of("llama", "1xH100-80GB", {{"seq_len", "32"}}), "FP8"));
}

TEST_CASE("an FP8 linear's temporaries are its factors in a byte a number, scales, and the scratch of their amax") {
  const std::int64_t tokens = 65536, inputs = 14336, outputs = 4096;  // x takes four reductions of 2^28 numbers
  Segment segment;
  segment.role = SegmentRole::block;
  segment.values = {{"x", {kTokens, fixed(inputs)}}, {"y", {kTokens, fixed(outputs)}}};
  Op op;
  op.kind = OpKind::linear;
  op.inputs = {0};
  op.outputs = {1};
  const Graph graph;
  const Precision precision = precision_named("fp8");
  const Device device = parse_cluster("1xH100-80GB").card.device;
  const OpContext context{
      .op = op, .segment = segment, .graph = graph, .precision = precision, .device = device, .shape = {8, 8192}};
  REQUIRE(multiplies_in_fp8(context));
  const Rule rule = rule_for(context, {{true}, {true}, {false}, {false}});
  CHECK(rule.saved == std::vector<Ref>{{Ref::Of::input, 0}});
  const auto all_bytes = [](const std::vector<Step>& steps, const std::string& name) {
    std::vector<std::int64_t> bytes;
    for (const Step& step : steps) {
      if (step.what == Step::What::temporary && step.name == name) bytes.push_back(step.bytes.n);
    }
    return bytes;
  };
  using Sizes = std::vector<std::int64_t>;
  CHECK(all_bytes(rule.forward, "x_fp8") == Sizes{tokens * inputs});
  CHECK(all_bytes(rule.forward, "weight_fp8") == Sizes{inputs * outputs});
  CHECK(all_bytes(rule.forward, "counter").size() == 4 + 1);
  CHECK(all_bytes(rule.forward, "product").empty());
  CHECK(all_bytes(rule.backward, "dy_fp8") == Sizes{tokens * outputs, tokens * outputs});
  CHECK(all_bytes(rule.backward, "weight_fp8") == Sizes{inputs * outputs});
  CHECK(all_bytes(rule.backward, "x_fp8") == Sizes{tokens * inputs});
  CHECK(all_bytes(rule.backward, "product") == Sizes(2, 2 * kFp8ProductRows * inputs));
  const Rule frozen = rule_for(context, {{true}, {false}, {false}, {false}});
  CHECK(frozen.saved.empty());
  CHECK(all_bytes(frozen.backward, "x_fp8").empty());
}

TEST_CASE("FP8 gains with the number of rows and is slower for few, as factors have to be cast") {
  const auto gain = [](const char* rows) {
    const ModelSpec spec = testing::llama_8b();
    const Cluster cluster = parse_cluster("1xH100-80GB");
    std::vector<double> seconds;
    for (const char* precision : {"bf16-mixed", "fp8"}) {
      Job job = unresolved_job();
      set_job_field(job, job_field_named("precision"), precision, "precision");
      set_job_field(job, job_field_named("seq_len"), rows, "seq_len");
      std::vector<std::string> notes;
      const Job resolved = resolve_job(job, spec, cluster, notes);
      seconds.push_back(step_time(build_graph(spec, {}), resolved, cluster).step_seconds);
    }
    return seconds[0] / seconds[1];
  };
  CHECK(gain("128") < 1);
  CHECK(gain("8192") > 1.2 * gain("128"));
  CHECK(gain("8192") < 2);
}

}  // namespace vramfit
