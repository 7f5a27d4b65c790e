// What configurations say of DDP and of checkpoints, which tools have different defaults for, is what a plan says.
#include <doctest/doctest.h>

#include <algorithm>
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

TEST_CASE("what axolotl keeps in fp32 is marked, unless its flash attention has everything in one dtype") {
  PlanFile plan;
  plan.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  plan.cluster = parse_cluster("1xH100-80GB");
  for (const std::string attention : {"auto", "flash-attn"}) {
    Job job = on_stack(unresolved_job(), defaults_of(stack_named("transformers"), plan.cluster));
    job_field_named("storage_dtype").set(job, "bf16");
    job_field_named("state_dtype").set(job, "bf16");
    job_field_named("attention").set(job, attention);
    std::vector<std::string> notes;
    plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
    const Export exported = export_plan(plan, export_tool_named("axolotl"));
    const bool is_marked = std::ranges::any_of(exported.marks, [](const std::string& mark) {
      return mark.starts_with("--storage-dtype bf16: axolotl keeps norms, embeddings");
    });
    CHECK(is_marked == (attention == "auto"));
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
      Job job = on_stack(unresolved_job(), defaults_of(stack_named(stack), plan.cluster));
      if (tool == "axolotl") job.precision.storage = job.precision.state = Dtype::bf16;
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

TEST_CASE("of a plan with ZeRO-1 or ZeRO-2, buckets are written in numbers, and ZeRO-1 for DeepSpeed alone") {
  PlanFile plan;
  plan.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  plan.cluster = parse_cluster("2xH100-80GB");
  const auto exported = [&](const std::string& sharding, const std::string& bucket, const std::string& tool) {
    Job job = on_stack(unresolved_job(), defaults_of(stack_named("deepspeed"), plan.cluster));
    for (const auto& [field, value] : {std::pair{"sharding", sharding}, {"bucket_bytes", bucket}}) {
      set_job_field(job, job_field_named(field), value, field);
    }
    std::vector<std::string> notes;
    plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
    return export_plan(plan, export_tool_named(tool));
  };
  for (const auto& [sharding, stage] : {std::pair{"shard-optimizer", 1}, {"shard-grad-op", 2}}) {
    const std::string text = exported(sharding, "40000000", "deepspeed").files.front().text;
    CHECK(text.find("\"stage\": " + std::to_string(stage)) != std::string::npos);
    CHECK(text.find("\"reduce_bucket_size\": 20000000") != std::string::npos);
    CHECK(exported(sharding, "1000000000", "deepspeed").files.front().text.find("bucket") == std::string::npos);
    CHECK_THROWS_WITH_AS(exported(sharding, "101", "deepspeed"), doctest::Contains("--bucket-bytes 101"), InputError);
    const Export of_trl = exported(sharding, "40000000", "trl");
    REQUIRE(of_trl.files.size() == 3);
    CHECK(of_trl.files[0].name == "ds_config.json");
    CHECK(of_trl.files[0].text.find("\"stage\": " + std::to_string(stage)) != std::string::npos);
    CHECK(of_trl.files[1].text.find("deepspeed_config_file: ds_config.json") != std::string::npos);
    CHECK(of_trl.files[1].text.find("fsdp") == std::string::npos);
    CHECK(of_trl.files[2].text.find("max_length: ") != std::string::npos);
  }
  for (const std::string& tool : export_tool_names()) {
    if (tool == "deepspeed" || tool == "trl") continue;
    CAPTURE(tool);
    CHECK_THROWS_WITH_AS(exported("shard-optimizer", "1000000000", tool),
                         doctest::Contains("--sharding shard-optimizer: only DeepSpeed"), InputError);
  }
}

TEST_CASE("a plan with SGD under DeepSpeed names its momentum, which transformers has none of by default") {
  PlanFile plan;
  plan.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  plan.cluster = parse_cluster("2xH100-80GB");
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("deepspeed"), plan.cluster));
  set_job_field(job, job_field_named("optimizer"), "sgd", "optimizer");
  std::vector<std::string> notes;
  plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
  const testing::TemporaryDirectory place;
  for (const char* const tool : {"deepspeed", "trl"}) {
    CAPTURE(tool);
    std::vector<std::string> files;
    for (const ExportedFile& file : export_plan(plan, export_tool_named(tool)).files) {
      files.push_back(place.write(file.name, file.text));
    }
    const ImportedJob imported = import_configs(files);
    CHECK(testing::value_of(imported, "optimizer") == job_field_named("optimizer").get(plan.job));
    CHECK(imported.unmodelled.empty());
  }
}

}  // namespace vramfit
