// Readers of JSON answer hostile input with one of our errors, and quickly: no crash, no hang, no foreign exception.
#include <doctest/doctest.h>

#include <ctime>
#include <functional>
#include <random>
#include <string>

#include "base/error.h"
#include "estimator/estimate.h"
#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"
#include "model_specs/config.h"
#include "model_specs/parameters.h"
#include "planner/answer/plan_json.h"
#include "planner/plan.h"
#include "program/files/plan_reader.h"
#include "tests/support/config_file.h"
#include "tests/support/mutate.h"
#include "tests/support/refused_or_read.h"

namespace vramfit {
namespace {

using testing::Outcome;

// Runs `read` on mutations of `text`; any other exception than ours fails the test, and so does one that takes long.
Outcome try_mutations(const std::string& text, int count, const std::function<void(const std::string&)>& read) {
  std::mt19937_64 random(text.size());
  Outcome outcome;
  for (int i = 0; i < count; ++i) {
    const std::string hostile = testing::mutate(text, random);
    CAPTURE(hostile);
    testing::try_to([&] { read(hostile); }, outcome, 1000);
  }
  return outcome;
}

void count_config(const std::string& text) {
  const ModelSpec spec = parse_config(text, "config.json");
  CHECK(parameter_count(spec) > 0);
  (void)buffers(spec);
}

void estimate_config(const std::string& text) {
  const ModelSpec spec = parse_config(text, "config.json");
  (void)estimate(spec, unresolved_job(), parse_cluster("2xH100-80GB"), {.suggestions = false});
}

void fuzz_configs(int count, const std::function<void(const std::string&)>& read) {
  Outcome all;
  for (const std::string& model : testing::small_models()) {
    CAPTURE(model);
    const Outcome outcome = try_mutations(testing::small_model_text(model), count, read);
    all.accepted += outcome.accepted;
    all.refused += outcome.refused;
  }
  // Both must happen often, or the mutations say nothing.
  CHECK(all.accepted * 20 > all.refused);
  CHECK(all.refused * 20 > all.accepted);
}

const std::string kJob = R"({"method": "full", "precision": "bf16-mixed", "sharding": "full-shard",
  "checkpointing": "full", "optimizer": "adamw:fused", "seq_len": 128, "micro_batch": 2, "grad_accum": 2})";

}  // namespace

TEST_CASE("a mutated config.json is counted or refused with one line") { fuzz_configs(150, count_config); }

TEST_CASE("a mutated config.json is estimated or refused with one line") { fuzz_configs(15, estimate_config); }

TEST_CASE("a mutated job file is read or refused with one line") {
  const Outcome outcome =
      try_mutations(kJob, 2000, [](const std::string& text) { (void)job_from_json(text, "job.json"); });
  CHECK(outcome.refused > 100);
}

TEST_CASE("a mutated plan file is read or refused with one line") {
  PlanRequest request;
  request.spec = testing::small_model("llama");
  request.job = unresolved_job();
  request.cluster = parse_cluster("2xcpu-1GiB");
  const std::string plan = plan_to_json(request, make_plan(request));
  const Outcome outcome =
      try_mutations(plan, 1000, [](const std::string& text) { (void)plan_from_json(text, "plan.json"); });
  CHECK(outcome.refused > 50);
}

TEST_CASE("any text as a cluster is read or refused with one line") {
  for (const std::string text : {"8xH100-80GB", "2x8xA100-80GB", "2xcpu-4GiB", "24GB", "H100-80GB@95.04GiB"}) {
    (void)try_mutations(text, 1000, [](const std::string& hostile) { (void)parse_cluster(hostile); });
  }
}

TEST_SUITE("full") {
  TEST_CASE("many mutated configurations are counted and estimated, or refused with one line") {
    fuzz_configs(5000, count_config);
    fuzz_configs(500, estimate_config);
  }
}

}  // namespace vramfit
