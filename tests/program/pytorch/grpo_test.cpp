// TRL's GRPOTrainer, without generation. That its step is what TRL does is tested in tests/oracle/hf_trainer, event by
// event.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/pytorch/loops/pickled.h"
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

Job grpo_job(const std::vector<Field>& fields, const std::string& cluster = "1xH100-80GB") {
  return trl_job("trl-grpo", fields, cluster);
}

TEST_CASE("a step has one group of completions unless told otherwise, and needs two") {
  CHECK(grpo_job({}).micro_batch == 8);
  CHECK(completions_of_group(resolved(grpo_job({}))) == 8);
  CHECK(completions_of_group(resolved(grpo_job({{"micro_batch", "3"}, {"grad_accum", "4"}}))) == 12);
  CHECK(completions_of_group(resolved(grpo_job({{"micro_batch", "3"}, {"grad_accum", "16"}}))) == 8);
  CHECK_THROWS_WITH_AS(program_of(grpo_job({{"micro_batch", "1"}})), doctest::Contains("one completion a step"),
                       NotModelled);
  CHECK_NOTHROW(program_of(grpo_job({{"micro_batch", "1"}}, "4xH100-80GB"), "4xH100-80GB"));
}

TEST_CASE("what is recorded is sound") {
  for (const std::vector<Field>& fields : {std::vector<Field>{},
                                           {{"checkpointing", "none"}, {"micro_batch", "2"}, {"grad_accum", "3"}},
                                           {{"method", "lora"}}}) {
    const auto fault = program::fault_of(program_of(grpo_job(fields)));
    CHECK_MESSAGE(!fault, fault.value_or(""));
  }
  for (const char* const method : {"full", "lora"}) {
    CAPTURE(method);
    const auto fault = program::fault_of(program_of(grpo_job({{"method", method}}, "4xH100-80GB"), "4xH100-80GB"));
    CHECK_MESSAGE(!fault, fault.value_or(""));
  }
}

TEST_CASE("a reference and kept log-probabilities are recorded soundly, and need more") {
  const auto most = [](const std::vector<Field>& fields, const char* cluster) {
    const program::Program program = program_of(grpo_job(fields, cluster), cluster);
    const auto fault = program::fault_of(program);
    CHECK_MESSAGE(!fault, fault.value_or(""));
    return program.main.instructions.size();
  };
  for (const char* const cluster : {"1xH100-80GB", "4xH100-80GB"}) {
    for (const char* const choices : {"reference", "num_iterations=2", "reference,steps_per_generation=4"}) {
      CAPTURE(cluster);
      CAPTURE(choices);
      const std::vector<Field> usual{{"grad_accum", "2"}, {"micro_batch", "2"}};
      std::vector<Field> chosen = usual;
      chosen.push_back({"grpo", choices});
      CHECK(most(chosen, cluster) > most(usual, cluster));
    }
  }
}

TEST_CASE("what a choice of GRPOTrainer has no rules with is named") {
  const auto refused = [](std::vector<Field> fields, const char* choices, const char* cluster) {
    fields.push_back({"grpo", choices});
    return [fields, cluster] { program_of(grpo_job(fields, cluster), cluster); };
  };
  const char* const four = "4xH100-80GB";
  CHECK_THROWS_WITH_AS(refused({{"grad_accum", "4"}}, "steps_per_generation=2", "1xH100-80GB")(),
                       doctest::Contains("--grpo steps_per_generation=2 with --grad-accum 4 (a multiple of it is"),
                       NotModelled);
  CHECK_THROWS_WITH_AS(refused({{"runtime", "deepspeed"}}, "num_iterations=2", four)(),
                       doctest::Contains("--grpo num_iterations=2 with ZeRO-3"), NotModelled);
  CHECK_NOTHROW(refused({{"runtime", "deepspeed"}, {"sharding", "shard-grad-op"}}, "num_iterations=2", four)());
  CHECK_THROWS_WITH_AS(
      refused({{"runtime", "deepspeed"}, {"method", "lora"}, {"grad_accum", "2"}}, "reference", four)(),
      doctest::Contains("--grpo reference with --method lora, ZeRO-3 and --grad-accum 2"), NotModelled);
  CHECK_THROWS_WITH_AS(refused({{"method", "lora"}}, "reference", four)(),
                       doctest::Contains("--grpo reference with --method lora and FSDP2"), NotModelled);
  CHECK_NOTHROW(refused({{"method", "lora"}}, "reference,num_iterations=2", four)());
  CHECK_THROWS_WITH_AS(program_of(grpo_job({{"grad_accum", "512"}})),
                       "not modelled: --grad-accum 512: completions of 512 micro-batches at once (up to 256 are)",
                       NotModelled);
  CHECK_THROWS_WITH_AS(refused({}, "steps_per_generation=1024", "1xH100-80GB")(), doctest::Contains("up to 256 are"),
                       NotModelled);
  CHECK_THROWS_WITH_AS(refused({{"method", "lora"}, {"offload", "params"}}, "num_iterations=2", four)(),
                       doctest::Contains("--offload params with --modeling trl-grpo and --method lora"), NotModelled);
  CHECK_NOTHROW(refused({{"offload", "params"}}, "reference", four)());
  Job job = grpo_job({{"grpo", "reference"}});
  job.modeling = Modeling::trl;
  CHECK_THROWS_WITH_AS(program_of(job), doctest::Contains("--stack trl-grpo has it"), NotModelled);
}

TEST_CASE("texts take as many bytes as pickle makes of them") {  // by Python 3.11
  CHECK(eager::pickled_texts(0, 0) == 5);
  CHECK(eager::pickled_texts(24, 1) == 184);
  CHECK(eager::pickled_texts(24, 127) == 15376);
  CHECK(eager::pickled_texts(1, 127) == 655);
  CHECK(eager::pickled_texts(1200, 80) == 486081);  // several batches and frames
  CHECK(eager::pickled_texts(3, 14000) == 210022);  // each text longer than a frame
}

}  // namespace
}  // namespace vramfit
