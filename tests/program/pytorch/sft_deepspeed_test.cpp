// TRL's SFTTrainer with DeepSpeed. That its step is what both do is tested in tests/oracle/hf_trainer, event by event.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/stages/adapters.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using SftSettings = std::vector<std::pair<std::string, std::string>>;

Job sft_zero_job(const char* stack, const SftSettings& settings, const Cluster& cluster) {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named(stack), cluster));
  for (const auto& [name, value] : settings) job_field_named(name).set(job, value);
  std::vector<std::string> notes;
  return resolve_job(job, testing::small_llama(), cluster, notes);
}

program::Program sft_zero_program(const SftSettings& settings, const std::string& gpus,
                                  const char* stack = "trl-deepspeed") {
  const Cluster cluster = parse_cluster(gpus);
  const Job job = sft_zero_job(stack, settings, cluster);
  require_rules(job, cluster);
  return program::make_program(
      {.graph = training_graph(testing::small_llama(), job), .job = job, .device = cluster.card.device, .coords = {}});
}

/// Of the first buffer whose label is this one; 0: there is none.
std::int64_t bytes_of(const program::Program& program, std::string_view label) {
  for (const program::Buffer& buffer : program.main.buffers) {
    if (program.labels[static_cast<std::size_t>(buffer.label)] == label) return buffer.bytes.n;
  }
  return 0;
}

std::int64_t runs_of(const program::Program& program, std::string_view name) {
  return std::ranges::count_if(program.main.instructions, [&](const program::Instruction& instruction) {
    const auto* run = std::get_if<program::Run>(&instruction);
    return run != nullptr && program::run_name(program, *run) == name;
  });
}

}  // namespace

TEST_CASE("SFTTrainer has programs in every stage of ZeRO, with adapters and without") {
  for (const char* sharding : {"shard-optimizer", "shard-grad-op", "full-shard"}) {
    for (const char* method : {"full", "lora", "qlora"}) {
      for (const char* checkpointing : {"none", "full"}) {
        for (const char* gpus : {"1xH100-80GB", "3xA100-80GB"}) {
          CAPTURE(sharding);
          CAPTURE(method);
          CAPTURE(checkpointing);
          CAPTURE(gpus);
          const SftSettings settings{
              {"sharding", sharding}, {"method", method}, {"checkpointing", checkpointing}, {"grad_accum", "2"}};
          CHECK(runs_of(sft_zero_program(settings, gpus), "trl::backward_kernel") > 0);
        }
      }
    }
  }
}

TEST_CASE("SFTTrainer checkpoints with DeepSpeed, too, and makes no logits of all tokens") {
  const Job job = sft_zero_job("trl-deepspeed", {}, parse_cluster("2xH100-80GB"));
  CHECK(job_field_named("checkpointing").get(job) == "full");
  CHECK(stack_of(job).name == "trl-deepspeed");
  for (const char* sharding : {"shard-grad-op", "full-shard"}) {
    const program::Program program = sft_zero_program({{"sharding", sharding}, {"seq_len", "512"}}, "2xH100-80GB");
    CHECK(bytes_of(program, "loss: tile of logits") == std::int64_t{511} * 32768 * 2);
    CHECK(runs_of(program, "trl::forward_kernel") > 0);
    CHECK(runs_of(program, "aten::_log_softmax") == 0);
  }
}

TEST_CASE("adapters under ZeRO-3 have the base's type with SFTTrainer, where the Trainer's are fp32") {
  const SftSettings settings{{"method", "lora"}, {"lora_rank", "4"}, {"checkpointing", "none"}};
  constexpr std::string_view kParts = "zero: parts of all parameters";
  const std::int64_t bytes = bytes_of(sft_zero_program(settings, "2xH100-80GB"), kParts);
  CHECK(bytes > 0);
  CHECK(bytes_of(sft_zero_program(settings, "2xH100-80GB", "deepspeed"), kParts) == 2 * bytes);
}

TEST_CASE("what SFTTrainer with DeepSpeed has no rules for is refused by name") {
  const Cluster two = parse_cluster("2xH100-80GB");
  for (const auto& [name, value, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"precision", "fp32", "--precision fp32 with --runtime deepspeed"},
           {"loss", "chunked:4", "--loss chunked:4"},
           {"optimizer", "lion", "--optimizer lion"}}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(require_rules(sft_zero_job("trl-deepspeed", {{name, value}}, two), two),
                         doctest::Contains(says.c_str()), NotModelled);
  }
}

}  // namespace vramfit
