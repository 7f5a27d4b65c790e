// TRL's DPOTrainer. That its step is what TRL does is tested in tests/oracle/hf_trainer, event by event.
#include <doctest/doctest.h>

#include <string>
#include <variant>
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
#include "tests/program/pytorch/trl_jobs.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

using testing::Field;
using testing::program_of;
using testing::resolved;
using testing::spec_of_test;
using testing::trl_job;

Job dpo_job(const std::vector<Field>& fields, const std::string& cluster = "1xH100-80GB") {
  return trl_job("trl-dpo", fields, cluster);
}

/// Of buffers whose label begins so, as many as the program makes.
Bytes bytes_of(const program::Program& program, const std::string& begins) {
  Bytes sum;
  for (const program::Buffer& buffer : program.main.buffers) {
    if (program.labels[static_cast<std::size_t>(buffer.label)].starts_with(begins)) sum += buffer.bytes;
  }
  return sum;
}

TEST_CASE("a reference model lies beside the trained one, in the same dtype, and adapters need none") {
  const std::int64_t weights = parameter_count(spec_of_test());
  CHECK(bytes_of(program_of(dpo_job({})), "reference: ").n >= 4 * weights);
  CHECK(bytes_of(program_of(dpo_job({{"precision", "bf16-pure"}})), "reference: ").n / 2 == weights);
  CHECK(bytes_of(program_of(dpo_job({{"method", "lora"}})), "reference: ") == Bytes{0});
}

TEST_CASE("a micro-batch of N pairs is 2 N rows") {
  CHECK(bytes_of(program_of(dpo_job({{"micro_batch", "3"}})), "inputs: ids") ==
        3 * bytes_of(program_of(dpo_job({})), "inputs: ids"));
  CHECK(rows_of_micro_batch(dpo_job({{"micro_batch", "3"}})) == 6);
  Job sft = dpo_job({{"micro_batch", "3"}});
  sft.modeling = Modeling::trl;
  CHECK(rows_of_micro_batch(sft) == 3);
  sft.global_batch = 12;
  CHECK(tokens_of_step(sft) == 12 * 512);
  sft.modeling = Modeling::trl_dpo;
  CHECK(tokens_of_step(sft) == 24 * 512);
}

TEST_CASE("what is recorded is sound") {
  for (const std::vector<Field>& fields : {std::vector<Field>{},
                                           {{"checkpointing", "none"}, {"micro_batch", "2"}, {"grad_accum", "3"}},
                                           {{"method", "lora"}}}) {
    const auto fault = program::fault_of(program_of(dpo_job(fields)));
    CHECK_MESSAGE(!fault, fault.value_or(""));
  }
  for (const char* const sharding : {"full-shard", "no-shard"}) {
    const std::string cluster = "4xH100-80GB";
    std::vector<Field> fields{{"method", "lora"}, {"sharding", sharding}};
    if (sharding == std::string("no-shard")) fields.push_back({"runtime", "pytorch"});
    CAPTURE(sharding);
    const auto fault = program::fault_of(program_of(dpo_job(fields, cluster), cluster));
    CHECK_MESSAGE(!fault, fault.value_or(""));
  }
}

TEST_CASE("what is recorded of a reference that is sharded or DeepSpeed's is sound") {
  const std::string cluster = "4xH100-80GB";
  std::vector<std::vector<Field>> jobs{{{"sharding", "full-shard"}}, {{"sharding", "shard-grad-op"}}};
  for (const char* const sharding : {"shard-optimizer", "shard-grad-op", "full-shard"}) {
    jobs.push_back({{"runtime", "deepspeed"}, {"sharding", sharding}});
    for (const char* const method : {"lora", "qlora"}) {
      jobs.push_back({{"runtime", "deepspeed"}, {"sharding", sharding}, {"method", method}});
    }
    jobs.push_back({{"runtime", "deepspeed"}, {"sharding", sharding}, {"method", "lora"}, {"checkpointing", "none"}});
  }
  for (std::vector<Field>& fields : jobs) {
    for (const char* const steps : {"1", "3"}) {
      fields.push_back({"grad_accum", steps});
      CAPTURE(fields.front().value);
      CAPTURE(fields.size());
      const auto fault = program::fault_of(program_of(dpo_job(fields, cluster), cluster));
      CHECK_MESSAGE(!fault, fault.value_or(""));
    }
  }
}

TEST_CASE("with FSDP2 all of the reference is gathered at once, and stays so if nothing is resharded") {
  const std::int64_t weights = parameter_count(spec_of_test());
  const std::string cluster = "4xH100-80GB";
  const program::Program program = program_of(dpo_job({}, cluster), cluster);
  CHECK(bytes_of(program, "reference: all-gather output").n == 2 * weights);
  CHECK(bytes_of(program, "reference: gathered ").n == 2 * weights);
  CHECK(bytes_of(program, "reference: shard of ").n == weights);
  for (const program::Buffer& buffer : program.main.buffers) {
    if (program.labels[static_cast<std::size_t>(buffer.label)] == "reference: all-gather output") {
      CHECK(buffer.stream == Stream::reference);
    }
  }
  const auto gathers = [&](const char* sharding) {
    int count = 0;
    for (const program::Instruction& instruction :
         program_of(dpo_job({{"sharding", sharding}}, cluster), cluster).main.instructions) {
      const auto* start = std::get_if<program::Start>(&instruction);
      count += static_cast<int>(start != nullptr && start->stream == Stream::reference);
    }
    return count;
  };
  CHECK(gathers("full-shard") == 2);     // of two steps
  CHECK(gathers("shard-grad-op") == 1);  // of the first
}

TEST_CASE("with DeepSpeed the reference is whole in 16 bits but for ZeRO-3, where each GPU has a part") {
  const std::int64_t weights = parameter_count(spec_of_test());
  const std::string cluster = "4xH100-80GB";
  const auto program = [&](const char* sharding, const char* method = "full") {
    return program_of(dpo_job({{"runtime", "deepspeed"}, {"sharding", sharding}, {"method", method}}, cluster),
                      cluster);
  };
  CHECK(bytes_of(program("shard-grad-op"), "reference: ").n == 2 * weights);
  CHECK(bytes_of(program("shard-optimizer"), "reference: ").n == 2 * weights);
  CHECK(bytes_of(program("full-shard"), "reference: part of ").n == weights / 2);
  CHECK(bytes_of(program("shard-grad-op", "lora"), "reference: ").n == 0);
}

TEST_CASE("dropout of adapters is off") {
  const std::vector<Field> lora{{"method", "lora"}, {"lora_rank", "4"}};
  std::vector<Field> dropped = lora;
  dropped.push_back({"lora_dropout", "0.1"});
  CHECK(program_of(dpo_job(lora)).main.instructions.size() == program_of(dpo_job(dropped)).main.instructions.size());
}

TEST_CASE("what DPOTrainer fails at with FSDP2 is refused by name") {
  CHECK_THROWS_WITH_AS(program_of(dpo_job({{"method", "lora"}, {"offload", "params"}}, "4xH100-80GB"), "4xH100-80GB"),
                       doctest::Contains("--offload params with --modeling trl-dpo"), NotModelled);
}

}  // namespace
}  // namespace vramfit
