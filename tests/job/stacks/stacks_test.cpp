#include "job/stacks/stacks.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "job/fields/job_fields.h"

namespace vramfit {

TEST_CASE("every default of a stack is a value of its field, and is what the job has then") {
  for (const Stack& stack : stacks()) {
    for (const auto& defaults : {stack.one_gpu, stack.several_gpus, stack.with_fsdp1}) {
      const Job job = on_stack(unresolved_job(), defaults);
      for (const StackDefault& each : defaults) CHECK(job_field_named(each.field).get(job) == each.value);
      if (!defaults.empty()) CHECK(stack_of(job).name == stack.name);
    }
  }
}

TEST_CASE("a stack's own runtime, set again, changes none of its other defaults") {
  for (const Stack& stack : stacks()) {
    for (const auto& defaults : {stack.one_gpu, stack.several_gpus, stack.with_fsdp1}) {
      const Job job = on_stack(unresolved_job(), defaults);
      const JobField& runtime = job_field_named("runtime");
      Job again = job;
      runtime.set(again, runtime.get(job));
      CHECK(job_as_flags(again, unresolved_job()) == job_as_flags(job, unresolved_job()));
    }
  }
}

TEST_CASE("defaults differ between one GPU and several") {
  const Stack& trainer = stack_named("transformers");
  CHECK(defaults_text(defaults_of(trainer, parse_cluster("1xL4"))) == "--runtime pytorch --modeling transformers");
  CHECK(defaults_text(defaults_of(trainer, parse_cluster("2xL4"))) ==
        "--runtime pytorch-fsdp2 --modeling transformers");
  Job job = on_stack(unresolved_job(), defaults_of(trainer, parse_cluster("2xL4")));
  for (const auto& [precision, reduced] : {std::pair{"bf16-mixed", Dtype::bf16}, {"fp32", Dtype::f32}}) {
    job_field_named("precision").set(job, precision);
    CHECK(job.precision.reduce == reduced);
    CHECK(job.wrap_embeddings);
  }
  CHECK(defaults_text(defaults_of(stack_named("deepspeed"), parse_cluster("2xL4"))) ==
        "--runtime deepspeed --modeling transformers");
  CHECK(defaults_text(defaults_of(stack_named("trl-deepspeed"), parse_cluster("1xL4"))) ==
        "--runtime deepspeed --modeling trl --checkpointing full");
  CHECK(with_deepspeed(stack_named("trl")).name == "trl-deepspeed");
  CHECK(defaults_text(defaults_of(stack_named("trl-dpo-deepspeed"), parse_cluster("8xL4"))) ==
        "--runtime deepspeed --modeling trl-dpo --checkpointing full");
  CHECK(with_deepspeed(stack_named("trl-dpo")).name == "trl-dpo-deepspeed");
  CHECK(with_deepspeed(stack_named("trl-reward")).name == "trl-reward-deepspeed");
  CHECK(defaults_text(defaults_of(stack_named("trl-grpo-deepspeed"), parse_cluster("8xL4"))) ==
        "--runtime deepspeed --modeling trl-grpo --checkpointing full --micro-batch 8");
  CHECK(with_deepspeed(trainer).name == "deepspeed");
  job_field_named("modeling").set(job, "trl-dpo");
  CHECK(name_with_deepspeed(job) == "trl-dpo-deepspeed");
  job_field_named("modeling").set(job, "torchtitan");
  CHECK(name_with_deepspeed(job) == "deepspeed");
  CHECK(with_deepspeed(stack_named("lightning")).name == "lightning");
  CHECK(defaults_of(stack_named("lightning"), parse_cluster("2xL4")).empty());
  CHECK(defaults_of(stack_named("torchtitan"), parse_cluster("1xL4")).empty());
  CHECK(defaults_text(defaults_of(stack_named("torchtitan"), parse_cluster("8xL4")))
            .starts_with("--runtime pytorch-fsdp2 --modeling torchtitan-0.2 "));
  for (const char* const modeling : {"torchtitan", "torchtitan-0.2"}) {
    job_field_named("modeling").set(job, modeling);
    CHECK(stack_of(job).name == "torchtitan");
  }
}

TEST_CASE("an unknown stack is refused with those that there are") {
  CHECK_THROWS_WITH_AS(stack_named("tril"), doctest::Contains("did you mean \"trl\""), InputError);
}

}  // namespace vramfit
