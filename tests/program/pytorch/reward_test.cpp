// TRL's RewardTrainer. That its step is what TRL does is tested in tests/oracle/hf_trainer, event by event.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/parameters.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/check.h"
#include "program/stages/adapters.h"
#include "program/stages/score_head.h"
#include "program/stages/trainable.h"
#include "tests/program/pytorch/trl_jobs.h"
#include "tests/support/config_file.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using testing::Field;
using testing::program_of;
using testing::resolved;
using testing::spec_of_test;
using testing::trl_job;

Job reward_job(const std::vector<Field>& fields, const std::string& cluster = "1xH100-80GB") {
  return trl_job("trl-reward", fields, cluster);
}

std::vector<std::string> scores_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const int p : score_parameters(graph)) names.push_back(graph.parameters[static_cast<std::size_t>(p)].name);
  return names;
}

TEST_CASE("a row of weights takes the output layer's place, tied or not") {
  for (const bool is_tied : {false, true}) {
    CAPTURE(is_tied);
    ModelSpec spec = spec_of_test();
    spec.tie_word_embeddings = is_tied;
    const Graph graph = training_graph(spec, resolved(reward_job({})));
    CHECK(scores_of(graph) == std::vector<std::string>{"score.weight"});
    std::int64_t elements = 0;
    for (const Parameter& p : graph.parameters) elements += element_count(p);
    spec.tie_word_embeddings = true;  // whose parameters are those of the body
    CHECK(elements == parameter_count(spec) + spec.hidden_size);
  }
}

TEST_CASE("beside adapters the head is trained as a copy of the frozen one") {
  const Job job = resolved(reward_job({{"method", "lora"}}));
  const Graph graph = training_graph(spec_of_test(), job);
  CHECK(scores_of(graph) ==
        std::vector<std::string>{"score.original_module.weight", "score.modules_to_save.default.weight"});
  const std::vector<bool> trained = trainable_parameters(graph, job);
  const std::vector<int> scores = score_parameters(graph);
  CHECK_FALSE(trained[static_cast<std::size_t>(scores[0])]);
  CHECK(trained[static_cast<std::size_t>(scores[1])]);
}

TEST_CASE("a step has no logits of the vocabulary, and its rows come in pairs") {
  const Job job = reward_job({{"micro_batch", "3"}});
  CHECK(rows_of_micro_batch(job) == 6);
  const std::int64_t logits = std::int64_t{6} * 512 * 4000;
  const program::Program program = program_of(job);
  CHECK(std::ranges::none_of(program.main.buffers, [&](const program::Buffer& buffer) {
    return buffer.category == Category::logits_and_loss && buffer.bytes.n >= logits;
  }));
}

TEST_CASE("what is recorded is sound") {
  for (const std::vector<Field>& fields : {std::vector<Field>{},
                                           {{"checkpointing", "none"}, {"micro_batch", "2"}, {"grad_accum", "3"}},
                                           {{"method", "lora"}}}) {
    const auto fault = program::fault_of(program_of(reward_job(fields)));
    CHECK_MESSAGE(!fault, fault.value_or(""));
  }
  for (const char* const method : {"full", "lora"}) {
    CAPTURE(method);
    const auto fault = program::fault_of(program_of(reward_job({{"method", method}}, "4xH100-80GB"), "4xH100-80GB"));
    CHECK_MESSAGE(!fault, fault.value_or(""));
  }
}

TEST_CASE("with DeepSpeed what is recorded is sound") {
  const std::string cluster = "4xH100-80GB";
  for (const std::string sharding : {"shard-grad-op", "full-shard"}) {
    for (const std::string method : {"full", "lora", "qlora"}) {
      CAPTURE(sharding);
      CAPTURE(method);
      const Job job = trl_job("trl-reward-deepspeed", {{"sharding", sharding}, {"method", method}}, cluster);
      CHECK(stack_of(job).name == "trl-reward-deepspeed");
      const auto fault = program::fault_of(program_of(job, cluster));
      CHECK_MESSAGE(!fault, fault.value_or(""));
    }
  }
}

TEST_CASE("what has no rules is refused by name") {
  CHECK_THROWS_WITH_AS(program_of(reward_job({{"method", "lora"}, {"frozen_dtype", "bf16"}})),
                       doctest::Contains("--frozen-dtype bf16"), NotModelled);
  CHECK_NOTHROW(program_of(reward_job({{"method", "lora"}, {"frozen_dtype", "bf16"}}, "4xH100-80GB"), "4xH100-80GB"));
  CHECK_THROWS_WITH_AS(training_graph(testing::small_model("granite"), resolved(reward_job({}))),
                       doctest::Contains("model_type granite"), NotModelled);
}

}  // namespace
}  // namespace vramfit
