// States of optimizers that the Trainer takes from other libraries than PyTorch.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/readers/check.h"
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

program::Program program_with(const char* optimizer) {
  const Cluster cluster = parse_cluster("1xH100-80GB");
  std::vector<std::string> notes;
  const Job job = resolve_job(with_optimizer("transformers", optimizer), testing::small_llama(), cluster, notes);
  return program::make_program(
      {.graph = build_graph(testing::small_llama(), {}), .job = job, .device = cluster.card.device, .coords = {}});
}

/// What the Trainer's optimizer keeps.
Bytes states_of(const char* optimizer) {
  const program::Program made = program_with(optimizer);
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
  CHECK(program::fault_of(program_with("adafactor")).value_or("") == "");
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

/// Averages of torchao's AdamW with `bits`, of bf16 parameters: codes, a scale for every 256 and a table for each, or
/// plain; and twelve learning rates.
Bytes states_of_torchao(std::int64_t bits) {
  Bytes both;
  for (const Parameter& parameter : build_graph(testing::small_llama(), {}).parameters) {
    const std::int64_t elements = element_count(parameter), codes = std::int64_t{1} << bits;
    const bool is_quantized = elements >= 4096 && elements % 256 == 0;
    both += Bytes{2 * (is_quantized ? elements * bits / 8 + 4 * (elements / 256 + codes) : 2 * elements)};
  }
  return both + Bytes{std::int64_t{4} * 12};
}

TEST_CASE("torchao's AdamW of 8 and 4 bits keeps averages of embeddings in codes, too, those of vectors as they are") {
  CHECK(states_of("adamw-8bit:torchao") == states_of_torchao(8));
  CHECK(states_of("adamw-4bit:torchao") == states_of_torchao(4));
  check_refused_in_torchtitan("adamw-8bit:torchao");
  check_refused_in_torchtitan("adamw-4bit:torchao");
}

TEST_CASE("torchao's AdamW works on one parameter at a time: 8 bytes for each of its elements, and 24 with 4 bits") {
  std::int64_t largest = 0;
  for (const Parameter& parameter : build_graph(testing::small_llama(), {}).parameters) {
    largest = std::max(largest, element_count(parameter));
  }
  for (const auto& [optimizer, bytes] : {std::pair{"adamw-8bit:torchao", 8}, {"adamw-4bit:torchao", 24}}) {
    const program::Program made = program_with(optimizer);
    Bytes all;
    for (const char* const what :
         {"exp_avg in blocks", "exp_avg_sq in blocks", "codes of exp_avg", "codes of exp_avg_sq"}) {
      Bytes most;
      for (const program::Buffer& buffer : made.main.buffers) {
        if (made.labels[static_cast<std::size_t>(buffer.label)] == fmt::format("adamw: {}", what)) {
          most = std::max(most, buffer.bytes);
        }
      }
      all += most;
    }
    CHECK(all == Bytes{bytes * largest});
  }
}

TEST_CASE("torchao's AdamW is refused by name where it has no rules, and what has them is named") {
  const auto why = [](Job job, const char* gpus) {
    return estimate(testing::small_llama(), job, parse_cluster(gpus), {.suggestions = false}).why;
  };
  CHECK(why(with_optimizer("transformers", "adamw-4bit"), "1xH100-80GB").find("--optimizer adamw-4bit:torchao") !=
        std::string::npos);
  CHECK(why(with_optimizer("accelerate", "adamw-8bit:torchao"), "1xH100-80GB")
            .starts_with("--optimizer adamw-8bit:torchao"));
  Job sharded = with_optimizer("transformers", "adamw-8bit:torchao");
  job_field_named("runtime").set(sharded, "pytorch-fsdp2");
  job_field_named("modeling").set(sharded, "transformers");  // whose units FSDP2 has from then on
  CHECK(why(sharded, "2xH100-80GB").find("with FSDP2 and trained weights in bf16") != std::string::npos);
  job_field_named("precision").set(sharded, "bf16-mixed");
  CHECK(why(sharded, "2xH100-80GB").find("--optimizer") == std::string::npos);
  CHECK(why(sharded, "7xH100-80GB").find("begins at no multiple of 16 bytes") != std::string::npos);
  job_field_named("offload").set(sharded, "params");
  CHECK(why(sharded, "2xH100-80GB").starts_with("--optimizer adamw-8bit:torchao with --offload params and FSDP2"));
  Job own = unresolved_job();
  job_field_named("optimizer").set(own, "adamw-8bit:torchao");
  job_field_named("runtime").set(own, "vramfit");
  CHECK(why(own, "1xH100-80GB").find("--stack transformers has it") != std::string::npos);
}

}  // namespace
}  // namespace vramfit
