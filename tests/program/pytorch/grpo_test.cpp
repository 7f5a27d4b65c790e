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
#include "tests/support/models.h"

namespace vramfit {
namespace {

ModelSpec spec_of_test() {
  ModelSpec spec = testing::small_llama();
  spec.vocab_size = 4000;  // of fewer rows the embedding's gradient has no rules
  return spec;
}

struct Field {
  std::string name, value;
};

Job grpo_job(const std::vector<Field>& fields, const std::string& cluster = "1xH100-80GB") {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("trl-grpo"), parse_cluster(cluster)));
  job_field_named("seq_len").set(job, "512");
  for (const Field& field : fields) job_field_named(field.name).set(job, field.value);
  return job;
}

Job resolved(const Job& job, const std::string& cluster = "1xH100-80GB") {
  std::vector<std::string> notes;
  return resolve_job(job, spec_of_test(), parse_cluster(cluster), notes);
}

program::Program program_of(const Job& job, const std::string& cluster_text = "1xH100-80GB") {
  const Cluster cluster = parse_cluster(cluster_text);
  const Job whole = resolved(job, cluster_text);
  require_rules(whole, cluster);
  return program::make_program(
      {.graph = training_graph(spec_of_test(), whole), .job = whole, .device = cluster.card.device, .coords = {}});
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
