// What files say of activation checkpointing beside whether there is any: options of torch's, and keys that two
// libraries read.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/configs/import.h"
#include "tests/cli/configs/imported.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::imported;
using testing::says;
using testing::TemporaryDirectory;
using testing::value_of;

const std::string kSft = "model_name_or_path: org/model\ndataset_name: d\noutput_dir: o\n";
const std::string kDpo = kSft + "f_divergence_type: reverse_kl\n";
const std::string kTrainer = "output_dir: out\nbf16: true\ngradient_checkpointing: true\n";
const std::string kFactory = "model_name_or_path: org/model\nstage: sft\ncutoff_len: 512\nfinetuning_type: full\n";

std::string options(const std::string& map) { return "gradient_checkpointing_kwargs: " + map + "\n"; }

TEST_CASE("TRL takes its own key out of the options of checkpoints, so that torch's default isn't theirs") {
  const ImportedJob whole = imported("sft.yaml", kSft + options("{selective: false}"));
  CHECK(whole.unmodelled.empty());
  CHECK(value_of(whole, "reentrant_checkpoints").empty());
  const ImportedJob selective = imported("sft.yaml", kSft + options("{selective: true}"));
  CHECK(says(selective.unmodelled, "gradient_checkpointing_kwargs.selective", "selective checkpointing"));
  CHECK(value_of(selective, "reentrant_checkpoints").empty());
  for (const std::string& other : {kDpo, kTrainer}) {
    CHECK(says(imported("t.yaml", other + options("{selective: false}")).unmodelled,
               "gradient_checkpointing_kwargs.selective", "no such option"));
  }
}

TEST_CASE("options that are a Trainer's own are changed, too, beside adapters under ZeRO-3") {
  const std::string lora = "use_peft: true\ndeepspeed: {zero_optimization: {stage: 3}}\n";
  for (const char* const map : {"{every_n_layers: 1}", "{offload: false}", "{selective: false}"}) {
    CAPTURE(map);
    CHECK(value_of(imported("sft.yaml", kSft + lora + options(map)), "reentrant_checkpoints") == "on");
    CHECK(value_of(imported("sft.yaml", kSft + options(map)), "reentrant_checkpoints").empty());
  }
  CHECK(value_of(imported("sft.yaml", kSft + lora + options("{}")), "reentrant_checkpoints").empty());
}

TEST_CASE("options with which torch fails, or keeps other tensors, are not modelled by name") {
  for (const char* const map : {"{debug: true}", "{unheard_of: 1}", "{use_reentrant: false, context_fn: f}",
                                "{early_stop: false, use_reentrant: false}", "'{\"debug\": true}'"}) {
    CAPTURE(map);
    const ImportedJob job = imported("t.yaml", kTrainer + options(map));
    REQUIRE(job.unmodelled.size() == 1);
    CHECK(job.unmodelled.front().key.starts_with("gradient_checkpointing_kwargs."));
    CHECK(job.unmodelled.front().line == 4);
  }
  const ImportedJob early = imported("t.yaml", kTrainer + options("{early_stop: false}"));
  CHECK(early.unmodelled.empty());
  CHECK(value_of(early, "reentrant_checkpoints") == "on");
  CHECK_THROWS_WITH_AS(imported("t.yaml", kTrainer + options("'{\"use_reentrant\": }'")),
                       doctest::Contains("t.yaml:4: gradient_checkpointing_kwargs"), InputError);
}

TEST_CASE("LLaMA-Factory's checkpoints are its own keys', and the Trainer's beside others are not modelled") {
  const auto job = [](const std::string& more) { return imported("l.yaml", kFactory + more); };
  const std::string on = "gradient_checkpointing: true\n";
  for (const std::string& more : {on + options("{use_reentrant: false}"), on + "use_reentrant_gc: false\n",
                                  on + "disable_gradient_checkpointing: true\n"}) {
    CAPTURE(more);
    CHECK(says(job(more).unmodelled, "", "l.yaml:5: gradient_checkpointing: true"));
  }
  const ImportedJob off = job("gradient_checkpointing: false\n");
  CHECK(off.unmodelled.empty());
  CHECK(value_of(off, "checkpointing") == "full");
  CHECK(says(off.ignored, "gradient_checkpointing", "disable_gradient_checkpointing"));
}

TEST_CASE("LLaMA-Factory's checkpoints don't re-enter autograd where the launcher starts FSDP2") {
  const TemporaryDirectory place;
  const std::string factory = place.write("l.yaml", kFactory);
  const std::string fsdp = place.write("fsdp.yaml",
                                       "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, "
                                       "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n");
  CHECK(value_of(import_configs({fsdp, factory}), "reentrant_checkpoints").empty());
  CHECK(value_of(import_configs({factory, fsdp}), "reentrant_checkpoints").empty());
}

}  // namespace
}  // namespace vramfit
