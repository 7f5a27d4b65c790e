// TRL's GRPOTrainer, without generation. That its step is what TRL does is tested in tests/oracle/hf_trainer, event by
// event.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks.h"
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
