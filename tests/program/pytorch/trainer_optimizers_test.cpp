// States of optimizers that the Trainer takes from other libraries than PyTorch.
#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

Job with_optimizer(const char* modeling, const char* optimizer) {
  Job job = unresolved_job();
  const auto set = [&](const char* field, const char* value) { job_field_named(field).set(job, value); };
  set("runtime", "pytorch");
  set("modeling", modeling);
  set("precision", "bf16-pure");
  set("attention", "flash");
  set("optimizer", optimizer);
  return job;
}

/// What the Trainer's optimizer keeps.
Bytes states_of(const char* optimizer) {
  const Cluster cluster = parse_cluster("1xH100-80GB");
  std::vector<std::string> notes;
  const Job job = resolve_job(with_optimizer("transformers", optimizer), testing::small_llama(), cluster, notes);
  const program::Program made = program::make_program(
      {.graph = build_graph(testing::small_llama(), {}), .job = job, .device = cluster.card.device, .coords = {}});
  Bytes states;
  for (const program::Buffer& buffer : made.main.buffers) {
    if (buffer.category == Category::optimizer_state) states += buffer.bytes;
  }
  return states;
}

void check_refused_in_torchtitan(const char* optimizer) {
  const Estimate refused = estimate(testing::small_llama(), with_optimizer("torchtitan", optimizer),
                                    parse_cluster("1xH100-80GB"), {.suggestions = false});
  CHECK(refused.why.starts_with(fmt::format("--optimizer {}", optimizer)));
}

TEST_CASE("the Trainer's Adafactor keeps a number for each row, column and element of a vector, and one a parameter") {
  const Graph graph = build_graph(testing::small_llama(), {});
  std::int64_t numbers = 0;
  for (const Parameter& parameter : graph.parameters) {  // the last step's number is there until the next one is made
    numbers += 2 + std::accumulate(parameter.shape.begin(), parameter.shape.end(), std::int64_t{0});
  }
  CHECK(states_of("adafactor") == Bytes{4 * numbers});
  check_refused_in_torchtitan("adafactor");
}

TEST_CASE(
    "the Trainer's AdamW of 8 bits keeps averages of matrices in bytes, those of embeddings and vectors in fp32") {
  const Graph graph = build_graph(testing::small_llama(), {});
  std::int64_t quantized = 0, other = 0, scales = 0;
  for (const Parameter& parameter : graph.parameters) {
    const std::int64_t elements = element_count(parameter);
    const bool is_quantized = elements >= 4096 && parameter.name.find("embed") == std::string::npos;
    (is_quantized ? quantized : other) += elements;
    if (is_quantized) scales += (elements + 255) / 256;
  }
  CHECK(quantized > other);
  CHECK(states_of("adamw-8bit") == Bytes{2 * quantized + 8 * other + 8 * scales + 2048});
  check_refused_in_torchtitan("adamw-8bit");
}

}  // namespace
}  // namespace vramfit
