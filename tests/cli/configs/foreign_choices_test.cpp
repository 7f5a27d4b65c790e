// Choices of one library's file, for a job that --stack gives to another.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/configs/job_configs.h"
#include "job/fields/job_fields.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::TemporaryDirectory;

JobChoice choice_of(const JobFlags& flags) { return read_job_choice_on_stack(flags, parse_cluster(flags.gpus)); }

TEST_CASE("a file's choices that a Trainer alone has are left out for a library without, and said") {
  const TemporaryDirectory place;
  const std::string lora = "model_name_or_path: gpt2\nstage: sft\ncutoff_len: 512\nfinetuning_type: lora\n";
  for (const std::string stack : {"accelerate", "vramfit", "transformers"}) {
    CAPTURE(stack);
    JobFlags flags;
    flags.values.resize(job_fields().size());
    flags.job_files = {place.write("l.yaml", lora)};
    flags.gpus = "2xH100-80GB";
    flags.has_stack = true;
    flags.stack = stack;
    apply_configs(flags);
    CHECK(flags.unmodelled.empty());
    const std::vector<std::string> fixed = choice_of(flags).fixed;
    const auto has = [&](std::string_view field) { return std::ranges::find(fixed, field) != fixed.end(); };
    const bool is_trainer = stack == "transformers";
    CHECK(has("reentrant_checkpoints") == is_trainer);
    CHECK(has("find_unused_parameters") == is_trainer);
    const bool is_said = std::ranges::any_of(
        flags.assumed, [](const std::string& each) { return each.ends_with("--reentrant-checkpoints on"); });
    CHECK(is_said != is_trainer);
  }
}

TEST_CASE("choices of a DeepSpeed file that other libraries lack are left out for them") {
  const TemporaryDirectory place;
  const std::string zero = place.write("ds.json",
                                       R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
                                           "pin_memory": false}, "reduce_bucket_size": "auto",
                                           "overlap_comm": true, "sub_group_size": 5}, "bf16": {"enabled": true},
                                           "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
                                           "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0})");
  for (const std::string stack : {"vramfit", "transformers", "deepspeed"}) {
    CAPTURE(stack);
    JobFlags flags;
    flags.values.resize(job_fields().size());
    flags.job_files = {zero};
    flags.gpus = "2xH100-80GB";
    flags.has_stack = true;
    flags.stack = stack;
    apply_configs(flags);
    const JobChoice choice = choice_of(flags);
    for (const auto& [field, value] :
         std::vector<std::pair<std::string, std::string>>{{"bucket_bytes", "auto"},
                                                          {"overlap_comm", "on"},
                                                          {"offload", "optimizer:pageable"},
                                                          {"optimizer", "adamw:deepspeed"}}) {
      CAPTURE(field);
      CHECK((job_field_named(field).get(choice.job) == value) == (stack == "deepspeed"));
      const bool is_kept = stack == "deepspeed" || field == "offload";
      CHECK((std::ranges::find(choice.fixed, field) != choice.fixed.end()) == is_kept);
    }
    CHECK(job_field_named("offload").get(choice.job) == (stack == "deepspeed" ? "optimizer:pageable" : "optimizer"));
    const bool is_said = std::ranges::any_of(flags.assumed, [](const std::string& each) {
      return each.starts_with("left out, as ") && each.find("--bucket-bytes auto") != std::string::npos;
    });
    CHECK(is_said == (stack != "deepspeed"));
  }
}

}  // namespace
}  // namespace vramfit
