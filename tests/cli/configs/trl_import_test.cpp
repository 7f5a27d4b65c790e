// Configurations of TRL's RewardTrainer and GRPOTrainer, read.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cli/configs/import.h"
#include "tests/cli/configs/imported.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::TemporaryDirectory;

TEST_CASE("RewardTrainer is known by its own arguments; adapters need the kind of model that PEFT trains a head of") {
  const TemporaryDirectory place;
  const auto imported = [&](const std::string& more) {
    return import_configs(
        {place.write("reward.yaml", "model_name_or_path: org/model\nmax_length: 512\noutput_dir: o\n" + more)});
  };
  const ImportedJob usual = imported("center_rewards_coefficient: 0.01\n");
  CHECK(usual.stack == "trl-reward");
  CHECK(usual.unmodelled.empty());
  const std::string lora = "use_peft: true\nlora_task_type: SEQ_CLS\n";
  CHECK(imported(lora).stack == "trl-reward");
  CHECK(imported(lora + "lora_modules_to_save: [score]\n").unmodelled.empty());
  for (const std::string& more :
       {lora + "lora_modules_to_save: [embed_tokens]\n", lora + "disable_dropout: false\n",
        std::string("use_peft: true\ncenter_rewards_coefficient: 0.01\n"),
        std::string("use_peft: true\nlora_task_type: CAUSAL_LM\ncenter_rewards_coefficient: 0.01\n")}) {
    CAPTURE(more);
    CHECK(!imported(more).unmodelled.empty());
  }
}

TEST_CASE("weights in the checkpoint's dtype are those of a built-in model, and not modelled of another") {
  const auto auto_of = [](const std::string& model) {
    return testing::imported(
        "sft.yaml",
        "model_name_or_path: " + model + "\ndtype: auto\nmax_length: 512\noutput_dir: o\nbf16: true\npacking: false\n");
  };
  const ImportedJob llama = auto_of("meta-llama/Llama-3.2-1B");
  CHECK(llama.unmodelled.empty());
  CHECK(testing::value_of(llama, "storage_dtype") == "bf16");
  CHECK(testing::value_of(auto_of("openai-community/gpt2"), "storage_dtype").empty());  // fp32
  const ImportedJob unknown = auto_of("org/model");
  REQUIRE(unknown.unmodelled.size() == 1);
  CHECK(unknown.unmodelled.front().says.find("dtype: bfloat16") != std::string::npos);
}

TEST_CASE("documents that SFTTrainer packs are one row of a micro-batch, unless rows are cut out of all of them") {
  const TemporaryDirectory place;
  const auto imported = [&](const std::string& more) {
    return import_configs({place.write("sft.yaml",
                                       "model_name_or_path: org/model\nmax_length: 512\noutput_dir: o\n"
                                       "dataset_name: d\n" +
                                           more)});
  };
  const auto packing = [&](const std::string& more) {
    const ImportedJob job = imported(more);
    const auto field = std::ranges::find(job.fields, "packing", [](const auto& each) { return each.first; });
    return field == job.fields.end() ? "" : field->second;
  };
  CHECK(packing("packing: true\n") == "bfd");
  CHECK(packing("packing: true\npacking_strategy: bfd_split\n") == "bfd");
  for (const char* const more : {"", "packing: false\n", "packing: true\npacking_strategy: wrapped\n",
                                 "packing_strategy: wrapped\npacking: true\n", "packing_strategy: bfd\n"}) {
    CAPTURE(more);
    CHECK(packing(more).empty());
    CHECK(imported(more).unmodelled.empty());
  }
  CHECK(!imported("packing: true\npacking_strategy: other\n").unmodelled.empty());
}

TEST_CASE("the longest prompt is a part of DPOTrainer's rows, and stands before GRPOTrainer's completions") {
  const TemporaryDirectory place;
  const auto unmodelled = [&](const std::string& more) {
    const std::string file = "model_name_or_path: org/model\nmax_prompt_length: 512\noutput_dir: o\n" + more;
    return import_configs({place.write("t.yaml", file)}).unmodelled.size();
  };
  CHECK(unmodelled("f_divergence_type: reverse_kl\nmax_length: 1024\n") == 0);
  CHECK(unmodelled("loss_type: dapo\nmax_completion_length: 256\n") == 1);
}

TEST_CASE("GRPOTrainer's defaults are read, and what its step would have beside is not modelled") {
  const TemporaryDirectory place;
  const auto imported = [&](const std::string& more) {
    const std::string grpo = "model_name_or_path: org/model\nloss_type: dapo\noutput_dir: o\n";
    return import_configs({place.write("grpo.yaml", grpo + more)});
  };
  const ImportedJob usual = imported("beta: 0.0\nnum_generations: 8\nmax_completion_length: 256\ntemperature: 0.9\n");
  CHECK(usual.stack == "trl-grpo");
  CHECK(usual.unmodelled.empty());
  const ImportedJob other = imported("beta: 0.04\nnum_iterations: 2\nsteps_per_generation: 8\n");
  CHECK(other.unmodelled.empty());
  CHECK(std::ranges::find(other.fields,
                          std::pair<std::string, std::string>{
                              "grpo", "reference,num_iterations=2,steps_per_generation=8"}) != other.fields.end());
  for (const char* const more :
       {"use_vllm: true\n", "generation_batch_size: 64\n", "mask_truncated_completions: true\n"}) {
    CAPTURE(more);
    CHECK(!imported(more).unmodelled.empty());
  }
}

}  // namespace
}  // namespace vramfit
