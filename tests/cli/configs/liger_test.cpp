// Liger Kernel in configurations: which parts a Trainer then has, by the keys of each tool, and written back.
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
namespace {

using testing::imported;
using testing::says;
using testing::value_of;

const std::string kTrainer = "output_dir: out\nbf16: true\ngradient_checkpointing: true\n";
const std::string kSft = "model_name_or_path: org/model\ndataset_name: d\noutput_dir: o\n";
const std::string kFactory = "model_name_or_path: org/model\nstage: sft\ncutoff_len: 512\nfinetuning_type: full\n";
const std::string kAxolotl = "base_model: org/model\nmicro_batch_size: 1\nflash_attention: true\n";
const std::string kPlugin = "plugins:\n  - axolotl.integrations.liger.LigerPlugin\n";

std::string kernels_of(const std::string& text) {
  const ImportedJob job = imported("train.yaml", text);
  CHECK(job.unmodelled.empty());
  return value_of(job, "kernels");
}

}  // namespace

TEST_CASE("use_liger_kernel and its configuration are --kernels, whatever the order of the keys") {
  const std::string parts = "liger_kernel_config: {swiglu: true, rope: false}\n";
  CHECK(kernels_of(kTrainer + "use_liger_kernel: true\n") == "liger");
  CHECK(kernels_of(kSft + "use_liger_kernel: true\n") == "liger");
  CHECK(kernels_of(kFactory + "enable_liger_kernel: true\n") == "liger");
  CHECK(kernels_of(kTrainer + "use_liger_kernel: true\n" + parts) == "liger:rope=off,swiglu=on");
  CHECK(kernels_of(kTrainer + parts + "use_liger_kernel: true\n") == "liger:rope=off,swiglu=on");
  CHECK(kernels_of(kTrainer + "liger_kernel_config: '{\"rms_norm\": false}'\nuse_liger_kernel: true\n") ==
        "liger:rms_norm=off");
  CHECK(kernels_of(kTrainer + "use_liger_kernel: true\nliger_kernel_config: {layer_norm: true}\n") == "liger");
  CHECK(kernels_of(kTrainer + "use_liger_kernel: false\n" + parts).empty());
  CHECK(kernels_of(kTrainer + parts).empty());
  const ImportedJob alone = imported("train.yaml", kTrainer + parts);
  CHECK(says(alone.ignored, "liger_kernel_config.rope", "without use_liger_kernel"));
  CHECK_FALSE(says(alone.understood, "liger_kernel_config.rope", ""));
  CHECK_THROWS_WITH_AS(imported("train.yaml", kTrainer + "liger_kernel_config: 1\n"),
                       doctest::Contains("liger_kernel_config: 1 is not a map"), InputError);
}

TEST_CASE("axolotl's plugin has the parts that are switched on, and no others") {
  const std::string off = ",cross_entropy=off,fused_linear_cross_entropy=";
  CHECK(kernels_of(kAxolotl + kPlugin + "liger_rope: true\nliger_fused_linear_cross_entropy: true\n") ==
        "liger:rope=on,rms_norm=off,swiglu=off,geglu=off" + off + "on");
  for (const char* const key : {"liger_glu_activation", "liger_swiglu"}) {
    CHECK(kernels_of(kAxolotl + key + ": true\nliger_layer_norm: true\n" + kPlugin) ==
          "liger:rope=off,rms_norm=off,swiglu=on,geglu=on" + off + "off");
  }
  CHECK(kernels_of(kAxolotl + kPlugin).empty());
  CHECK(kernels_of(kAxolotl + "liger_rope: true\n").empty());
  CHECK(kernels_of(kAxolotl + "plugins: []\n").empty());
  const ImportedJob other =
      imported("a.yaml", kAxolotl + kPlugin + "  - axolotl.integrations.spectrum.SpectrumPlugin\n");
  CHECK(says(other.unmodelled, "plugins", "a plugin"));
  const ImportedJob both =
      imported("a.yaml", kAxolotl + kPlugin + "liger_cross_entropy: true\nliger_fused_linear_cross_entropy: true\n");
  CHECK(says(both.unmodelled, "", "both on"));
  CHECK(value_of(both, "kernels").empty());
  const ImportedJob scaled = imported("a.yaml", kAxolotl + kPlugin + "liger_use_token_scaling: true\n");
  CHECK(says(scaled.unmodelled, "liger_use_token_scaling", "Liger"));
}

TEST_CASE("a plan with Liger is written so that it is read as the same") {
  const testing::TemporaryDirectory place;
  PlanFile plan;
  plan.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  plan.cluster = parse_cluster("1xH100-80GB");
  const std::string all =
      "liger:rope=on,rms_norm=on,swiglu=on,geglu=on,cross_entropy=off,fused_linear_cross_entropy=on";
  for (const auto& [stack, tool] : std::vector<std::pair<std::string, std::string>>{
           {"trl", "trl"}, {"deepspeed", "deepspeed"}, {"transformers", "axolotl"}}) {
    for (const std::string kernels : {"liger", "liger:rope=off", "liger:swiglu=off"}) {
      CAPTURE(stack);
      Job job = on_stack(unresolved_job(), defaults_of(stack_named(stack), plan.cluster));
      job_field_named("kernels").set(job, kernels);
      if (tool == "axolotl") job_field_named("storage_dtype").set(job, "bf16");
      if (tool == "axolotl") job_field_named("state_dtype").set(job, "bf16");
      std::vector<std::string> notes, files;
      plan.job = resolve_job(job, plan.spec, plan.cluster, notes);
      for (const ExportedFile& file : export_plan(plan, export_tool_named(tool)).files) {
        files.push_back(place.write(file.name, file.text));
      }
      std::string of_axolotl = all;
      if (kernels == "liger:rope=off") of_axolotl = "liger:rope=off" + all.substr(all.find(','));
      if (kernels == "liger:swiglu=off") {
        of_axolotl = "liger:rope=on,rms_norm=on,swiglu=off,geglu=off" + all.substr(all.find(",cross"));
      }
      CHECK(value_of(import_configs(files), "kernels") == (tool == "axolotl" ? of_axolotl : kernels));
    }
  }
}

}  // namespace vramfit
