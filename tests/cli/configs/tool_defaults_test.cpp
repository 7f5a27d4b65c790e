// What other tools do where their files say little, found in the examples that they ship.
#include <doctest/doctest.h>

#include <string>

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

const std::string kAxolotl = "base_model: org/model\nsequence_len: 512\nmicro_batch_size: 1\n";
const std::string kFactory = "model_name_or_path: org/model\nstage: sft\nfinetuning_type: lora\n";

bool is_unmodelled(const ImportedJob& job, const std::string& text) { return says(job.unmodelled, "", text); }

}  // namespace

TEST_CASE("optim_args are read key by key, as a map and as a text") {
  for (const char* const arguments : {"{momentum: 0.9, nesterov: true}", "momentum=0.9, nesterov=True"}) {
    CAPTURE(arguments);
    const ImportedJob job = imported("axolotl.yaml", kAxolotl + "optimizer: sgd\noptim_args: " + arguments + "\n");
    CHECK(says(job.understood, "optim_args.momentum", "buffer"));
    CHECK(says(job.ignored, "optim_args.nesterov", "no memory"));
    CHECK_FALSE(says(job.ignored, "optim_args.momentum", ""));
    CHECK_FALSE(says(job.ignored, "optim_args", ""));
  }
  const ImportedJob decayed =
      imported("axolotl.yaml", kAxolotl + "optimizer: sgd\noptim_args: {momentum: 0.9, weight_decay: 0.1}\n");
  CHECK(is_unmodelled(decayed, "SGD with weight decay"));
}

TEST_CASE("axolotl's FSDP1 has original parameters, transformers' default, unless its key says otherwise") {
  const std::string fsdp =
      kAxolotl + "attn_implementation: flash_attention_2\nfsdp_config:\n  cpu_ram_efficient_loading: true\n";
  const ImportedJob job = imported("axolotl.yaml", fsdp);
  CHECK(value_of(job, "runtime") == "pytorch-fsdp1");
  CHECK(job.unmodelled.empty());
  CHECK(is_unmodelled(imported("axolotl.yaml", fsdp + "  use_orig_params: false\n"), "use_orig_params"));
}

TEST_CASE("axolotl's FSDP2 leaves embeddings to the root and weights in bf16, where accelerate's does neither") {
  const std::string fsdp =
      "attn_implementation: flash_attention_2\nfsdp_version: 2\nfsdp_config: {cpu_ram_efficient_loading: true}\n";
  const ImportedJob job = imported("axolotl.yaml", kAxolotl + fsdp);
  CHECK(job.unmodelled.empty());
  CHECK(value_of(job, "wrap_embeddings") == "off");
  CHECK(value_of(job, "storage_dtype") == "bf16");
  CHECK(value_of(job, "state_dtype") == "bf16");
  const ImportedJob adapted = imported("axolotl.yaml", kAxolotl + "adapter: lora\n" + fsdp);
  CHECK(value_of(adapted, "wrap_embeddings") == "off");
  CHECK(value_of(adapted, "frozen_dtype") == "bf16");
  CHECK(value_of(adapted, "storage_dtype").empty());
}

TEST_CASE("where axolotl has the whole model on each GPU before FSDP shards it is not modelled, except in 4 bits") {
  const auto of = [](const std::string& bits, const std::string& version, const std::string& loading) {
    return imported("axolotl.yaml", kAxolotl + "attn_implementation: flash_attention_2\n" + bits +
                                        "fsdp_version: " + version + "\nfsdp_config: {" + loading + "}\n");
  };
  const std::string four = "adapter: qlora\nload_in_4bit: true\n", sends = "cpu_ram_efficient_loading: true";
  for (const char* const version : {"1", "2"}) {
    CAPTURE(version);
    CHECK(of("", version, sends).unmodelled.empty());
    CHECK(is_unmodelled(of("", version, ""), "moves the whole model to each GPU before it shards it"));
    CHECK(of("ddp: false\n", version, "").unmodelled.empty());
    CHECK(is_unmodelled(of("adapter: lora\n", version, ""), "cpu_ram_efficient_loading: true is"));
  }
  CHECK(of(four, "2", "").unmodelled.empty());
  CHECK(is_unmodelled(of(four, "2", sends), "which axolotl refuses"));
  CHECK(is_unmodelled(of(four, "1", ""), "fsdp_version: 2 is"));
}

TEST_CASE("a strategy where FSDP2 has a switch is refused, as accelerate refuses it") {
  const auto read = [](const std::string& version, const std::string& reshard) {
    const std::string keys = "{fsdp_version: " + version + ", fsdp_reshard_after_forward: " + reshard + "}\n";
    return imported("accelerate.yaml", "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: " + keys);
  };
  for (const char* const strategy : {"4", "HYBRID_SHARD", "FULL_SHARD"}) {
    CAPTURE(strategy);
    CHECK_THROWS_WITH_AS(read("2", strategy), doctest::Contains("true is FULL_SHARD, false is SHARD_GRAD_OP"),
                         InputError);
    CHECK_NOTHROW(read("1", strategy));
  }
  CHECK(value_of(read("2", "1"), "sharding") == "full-shard");
}

TEST_CASE("axolotl's ends in fp32 are not modelled where nothing converts them back") {
  constexpr const char* kEnds = "norms, embeddings and the head in fp32";
  CHECK(is_unmodelled(imported("axolotl.yaml", kAxolotl), kEnds));
  CHECK(is_unmodelled(imported("axolotl.yaml", kAxolotl + "attn_implementation: sdpa\n"), kEnds));
  for (const char* const other :
       {"attn_implementation: flash_attention_2\n", "flash_attention: true\n", "bf16: false\n", "adapter: lora\n",
        "fsdp_config: {fsdp_version: 2}\n", "deepspeed: {zero_optimization: {stage: 2}}\n"}) {
    CAPTURE(other);
    CHECK_FALSE(is_unmodelled(imported("axolotl.yaml", kAxolotl + other), kEnds));
  }
}

TEST_CASE("axolotl's changes of the model's configuration are ignored only where they are about positions") {
  const auto changed = [](const std::string& map) {
    return imported("axolotl.yaml", kAxolotl + "overrides_of_model_config: " + map + "\n");
  };
  CHECK(says(changed("{rope_scaling: {type: linear}}").ignored, "overrides_of_model_config", "positions"));
  CHECK(says(changed("{num_hidden_layers: 2}").unmodelled, "overrides_of_model_config", "configuration"));
}

TEST_CASE("documents that other tools pack are told apart with the flash-attn package alone") {
  const std::string axolotl = kAxolotl + "sample_packing: true\n", factory = kFactory + "neat_packing: true\n";
  for (const char* const attention : {"", "attn_implementation: sdpa\n", "attn_implementation: eager\n"}) {
    CAPTURE(attention);
    CHECK(is_unmodelled(imported("axolotl.yaml", axolotl + attention), "sample_packing: documents in one row"));
  }
  CHECK(is_unmodelled(imported("lora.yaml", factory), "neat_packing: documents in one row"));
  const ImportedJob packed = imported("lora.yaml", factory + "flash_attn: fa2\nper_device_train_batch_size: 1\n");
  CHECK(packed.unmodelled.empty());
  CHECK(testing::value_of(packed, "packing") == "bfd");
  CHECK(testing::value_of(packed, "attention") == "flash-attn");
  const std::string several = factory + "flash_attn: fa2\nper_device_train_batch_size: 2\n";
  CHECK(is_unmodelled(imported("lora.yaml", several), "and more than one row"));
  CHECK(imported("lora.yaml", kFactory + "packing: true\n").unmodelled.empty());
  const ImportedJob multipack = imported("axolotl.yaml", axolotl + "attn_implementation: flash_attention_2\n");
  CHECK_FALSE(is_unmodelled(multipack, "packing"));
  CHECK(says(imported("axolotl.yaml", axolotl + "multipack_real_batches: true\n").unmodelled, "multipack_real_batches",
             "packed one by one"));
  CHECK(testing::value_of(multipack, "packing") == "bfd");
}

TEST_CASE("a file of LLaMA-Factory's that predicts or evaluates without do_train is no training") {
  CHECK(is_unmodelled(imported("lora.yaml", kFactory + "do_predict: true\n"), "no training: do_predict"));
  for (const char* const training : {"", "do_train: true\n", "do_train: true\ndo_eval: true\n", "do_eval: false\n"}) {
    CAPTURE(training);
    CHECK(imported("lora.yaml", kFactory + training).unmodelled.empty());
  }
  CHECK(says(imported("lora.yaml", kFactory + "do_train: false\n").unmodelled, "do_train", "no training"));
}

TEST_CASE("a way of fine-tuning without rules is not taken for LLaMA-Factory's default") {
  const ImportedJob job =
      imported("freeze.yaml", "stage: sft\nmodel_name_or_path: org/model\nfinetuning_type: freeze\n");
  CHECK(says(job.unmodelled, "finetuning_type", "without rules"));
  CHECK(value_of(job, "method").empty());
}

TEST_CASE("of torchtune's packed data, and of its models of images, each key is spoken of") {
  const ImportedJob packed = imported("tune.yaml",
                                      "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n"
                                      "dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}\n"
                                      "tokenizer: {path: a, merges_path: b, max_seq_len: 512}\n");
  CHECK(says(packed.unmodelled, "dataset.packed", "packed rows"));
  CHECK(says(packed.ignored, "dataset._component_", "which data"));
  CHECK(says(packed.ignored, "tokenizer.merges_path", "which tokenizer"));
  const ImportedJob images =
      imported("tune.yaml",
               "model: {_component_: torchtune.models.llama3_2_vision.llama3_2_vision_11b, decoder_trainable: x}\n");
  CHECK(says(images.unmodelled, "model.decoder_trainable", "images"));
}

TEST_CASE("an empty map is listed as that, not as unknown") {
  const ImportedJob job =
      imported("accelerate.yaml", "distributed_type: 'NO'\nfsdp_config: {}\ndeepspeed_config: {}\n");
  CHECK(says(job.ignored, "fsdp_config", "empty"));
  CHECK(says(job.ignored, "deepspeed_config", "empty"));
}

TEST_CASE("a file that is named from the top folder of a project is found there") {
  const TemporaryDirectory place;
  place.write("zero/z2.json", R"({"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}})");
  const std::string file = place.write("examples/lora/lora.yaml", kFactory + "deepspeed: zero/z2.json\n");
  const ImportedJob job = import_configs({file});
  CHECK(value_of(job, "sharding") == "shard-grad-op");
  CHECK(job.unmodelled.empty());
}

TEST_CASE("of a DeepSpeed configuration that isn't there no stage is guessed") {
  const ImportedJob job = imported("lora.yaml", kFactory + "deepspeed: nowhere/z3.json\n");
  CHECK(says(job.unmodelled, "deepspeed", "the file isn't there"));
  CHECK(job.unmodelled.size() == 1);
  CHECK(value_of(job, "sharding").empty());
}

}  // namespace vramfit
