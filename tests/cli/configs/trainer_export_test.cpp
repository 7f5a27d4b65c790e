// What configurations say of DDP and of checkpoints, which tools have different defaults for, is what a plan says.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/configs/export/export.h"
#include "cli/configs/import.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/catalog.h"
#include "tests/cli/configs/imported.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {

TEST_CASE("what DDP is told of unused parameters is read as what it was, from tools with other defaults, too") {
  const testing::TemporaryDirectory place;
  PlanFile plan;
  plan.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  plan.cluster = parse_cluster("2xH100-80GB");
  for (const std::string stack : {"trl", "transformers"}) {
    for (const char* const finds : {"", "on", "off"}) {
      CAPTURE(stack);
      CAPTURE(finds);
      Job job = on_stack(unresolved_job(), defaults_of(stack_named(stack), plan.cluster));
      for (const auto& [field, value] :
           std::vector<std::pair<std::string, std::string>>{{"runtime", "pytorch-ddp"},
                                                            {"method", "lora"},
                                                            {"frozen_dtype", "bf16"},
                                                            {"checkpointing", "full"},
                                                            {"find_unused_parameters", finds},
                                                            {"reentrant_checkpoints", "on"}}) {
        job_field_named(field).set(job, value);
      }
      std::vector<std::string> notes;
      plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
      const Export exported = export_plan(plan, export_tool_named(stack == "trl" ? "trl" : "axolotl"));
      const ImportedJob read = import_configs({place.write("train.yaml", exported.files.back().text)});
      CHECK(testing::value_of(read, "find_unused_parameters") == (std::string(finds) == "off" ? "off" : ""));
      CHECK(testing::value_of(read, "reentrant_checkpoints") == "on");
    }
  }
}

TEST_CASE("whether gradients are clipped is read as what the plan said, from tools with either default") {
  const testing::TemporaryDirectory place;
  PlanFile plan;
  plan.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  plan.cluster = parse_cluster("2xH100-80GB");
  for (const auto& [stack, tool] : std::vector<std::pair<std::string, std::string>>{{"trl", "trl"},
                                                                                    {"trl-dpo", "trl"},
                                                                                    {"trl-deepspeed", "trl"},
                                                                                    {"transformers", "axolotl"},
                                                                                    {"deepspeed", "deepspeed"},
                                                                                    {"torchtune", "torchtune"}}) {
    for (const bool clips : {true, false}) {
      CAPTURE(stack);
      CAPTURE(clips);
      std::vector<std::string> notes, files;
      const Job job = on_stack(unresolved_job(), defaults_of(stack_named(stack), plan.cluster));
      plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
      plan.clip = clips;
      for (const ExportedFile& file : export_plan(plan, export_tool_named(tool)).files) {
        files.push_back(place.write(file.name, file.text));
      }
      CHECK(import_configs(files).clips == clips);
    }
  }
}

TEST_CASE("a loop's DDP, which doesn't look for unused parameters, is told to TRL, whose own would with adapters") {
  const testing::TemporaryDirectory place;
  PlanFile plan;
  plan.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  plan.cluster = parse_cluster("2xH100-80GB");
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("accelerate"), plan.cluster));
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{
           {"runtime", "pytorch-ddp"}, {"method", "lora"}, {"lora_targets", "self_attn.q_proj"}}) {
    job_field_named(field).set(job, value);
  }
  std::vector<std::string> notes;
  plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
  const auto read = [&] {
    const Export exported = export_plan(plan, export_tool_named("trl"));
    return import_configs({place.write("sft.yaml", exported.files.back().text)});
  };
  CHECK(testing::value_of(read(), "find_unused_parameters") == "off");
  CHECK(testing::value_of(read(), "lora_targets") == "self_attn.q_proj");
  plan.job.lora.targets = {"lm_head"};
  CHECK_THROWS_WITH_AS(read(), doctest::Contains("--lora-targets lm_head"), InputError);
}

}  // namespace vramfit
