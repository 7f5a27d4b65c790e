// Several files as one job: what is merged, what contradicts, what is followed and what is missing.
#include "cli/configs/import.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/configs/job_configs.h"
#include "tests/cli/configs/imported.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::says;
using testing::TemporaryDirectory;
using testing::value_of;

const std::string kTrainer = "output_dir: out\nper_device_train_batch_size: 2\nbf16: true\n";
const std::string kFsdp =
    "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: 'no'\n"
    "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n";

}  // namespace

TEST_CASE("accelerate's file and the Trainer's are one job, in either order") {
  const TemporaryDirectory place;
  const std::string fsdp = place.write("fsdp.yaml", kFsdp), trainer = place.write("train.yaml", kTrainer);
  const ImportedJob job = import_configs({fsdp, trainer}), other = import_configs({trainer, fsdp});
  CHECK(job.fields == other.fields);
  CHECK(job.stack == "transformers");
  CHECK(job.gpus.per_node == 8);
  CHECK(value_of(job, "precision") == "bf16-mixed");  // the program's comes before the launcher's
  CHECK(value_of(job, "sharding") == "full-shard");
  CHECK(value_of(job, "micro_batch") == "2");
}

TEST_CASE("TRL's file and accelerate's with DeepSpeed are one job of SFTTrainer with DeepSpeed, in either order") {
  const TemporaryDirectory place;
  const std::string sft = place.write("sft.yaml",
                                      "model_name_or_path: org/model\nmax_length: 2048\noutput_dir: out\n"
                                      "per_device_train_batch_size: 2\nuse_peft: true\nlora_r: 8\n");
  const std::string zero = place.write("accelerate.yaml",
                                       "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 4\n"
                                       "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu}\n");
  const ImportedJob job = import_configs({zero, sft}), other = import_configs({sft, zero});
  CHECK(job.fields == other.fields);
  CHECK(job.stack == "trl-deepspeed");
  CHECK(job.unmodelled.empty());
  for (const auto& [field, value] : {std::pair{"sharding", "full-shard"},
                                     {"offload", "optimizer"},
                                     {"precision", "bf16-mixed"},
                                     {"checkpointing", "full"},
                                     {"method", "lora"},
                                     {"frozen_dtype", ""},
                                     {"seq_len", "2048"}}) {
    CAPTURE(field);
    CHECK(value_of(job, field) == value);
  }
}

TEST_CASE("a file that another one names is read once, wherever it stands and whatever it is called") {
  const TemporaryDirectory place;
  const std::string zero = place.write("ds_config.json", R"({"zero_optimization": {"stage": 2}})");
  const std::string trainer = place.write("arguments.yaml", kTrainer + "deepspeed: ds_config.json\n");
  const std::string dotted = (place.path() / "." / "ds_config.json").string();
  for (const auto& files : {std::vector{zero, trainer}, std::vector{trainer, zero}, std::vector{dotted, trainer},
                            std::vector{trainer, dotted}, std::vector{trainer}, std::vector{trainer, trainer}}) {
    const ImportedJob job = import_configs(files);
    CHECK(job.files.size() == 2);
    CHECK(job.fields == import_configs({trainer}).fields);
  }
}

TEST_CASE("which policy wraps where none is named doesn't depend on the order of files") {
  const TemporaryDirectory place;
  // Says nothing of FSDP itself, so that its default policy isn't what axolotl's FSDP is set up with.
  const std::string launcher =
      place.write("launcher.yaml", "compute_environment: LOCAL_MACHINE\nnum_processes: 2\nmixed_precision: bf16\n");
  const std::string axolotl =
      place.write("axolotl.yaml",
                  "base_model: org/model\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\nfsdp_version: 2\n"
                  "fsdp_config: {reshard_after_forward: true}\n");
  CHECK(import_configs({launcher, axolotl}).fields == import_configs({axolotl, launcher}).fields);
  CHECK(value_of(import_configs({axolotl, launcher}), "wrap").empty());
  // Its own FSDP has its own default, the Trainer's switch another.
  const std::string bare = place.write("bare.yaml",
                                       "distributed_type: FSDP\nnum_processes: 2\n"
                                       "fsdp_config: {fsdp_version: 2}\n");
  const std::string trainer = place.write("train.yaml", kTrainer);
  const std::string switched = place.write("switched.yaml", kTrainer + "fsdp: true\n");
  for (const auto& [file, wrap] : {std::pair{trainer, "none"}, std::pair{switched, ""}}) {
    CHECK(value_of(import_configs({bare, file}), "wrap") == wrap);
    CHECK(value_of(import_configs({file, bare}), "wrap") == wrap);
  }
}

TEST_CASE("codes of TRL's QLoRA are bytes unless it says otherwise, which FSDP leaves whole") {
  const TemporaryDirectory place;
  const std::string fsdp = place.write("fsdp.yaml", kFsdp);
  const auto imported = [&](const std::string& more) {
    const std::string sft =
        "model_name_or_path: org/model\nuse_peft: true\nload_in_4bit: true\nmax_length: 512\n"
        "dataset_name: d\noutput_dir: o\nbf16: true\n";
    return import_configs({place.write("sft.yaml", sft + more), fsdp});
  };
  CHECK(says(imported("").unmodelled, "", "bnb_4bit_quant_storage: uint8, TRL's default, under FSDP"));
  CHECK(says(imported("bnb_4bit_quant_storage: uint8\n").unmodelled, "", "bnb_4bit_quant_storage: uint8 under FSDP"));
  CHECK(imported("bnb_4bit_quant_storage: bfloat16\n").unmodelled.empty());
  CHECK(says(imported("bnb_4bit_quant_storage: float32\n").unmodelled, "", "FSDP2 would cast for its gathers"));
}

TEST_CASE("DPOTrainer's own defaults are read, and what changes its memory is not modelled") {
  const TemporaryDirectory place;
  const std::string fsdp = place.write("fsdp.yaml", kFsdp);
  const auto imported = [&](const std::string& more) {
    const std::string dpo =
        "model_name_or_path: org/model\nuse_peft: true\nmax_length: 512\noutput_dir: o\nf_divergence_type: "
        "reverse_kl\n";
    return import_configs({place.write("dpo.yaml", dpo + more), fsdp});
  };
  const ImportedJob usual = imported(
      "loss_type: [sigmoid]\nf_alpha_divergence_coef: 0.5\nref_model_sync_steps: 512\ndisable_dropout: true\n"
      "sync_ref_model: false\n");
  CHECK(usual.stack == "trl-dpo");
  CHECK(usual.unmodelled.empty());
  for (const char* const more : {"loss_type: [sigmoid, sft]\n", "disable_dropout: false\n", "sync_ref_model: true\n",
                                 "precompute_ref_log_probs: true\n", "load_in_4bit: true\n"}) {
    CAPTURE(more);
    CHECK(!imported(more).unmodelled.empty());
  }
}

TEST_CASE("DPOTrainer's file and accelerate's with DeepSpeed are one job of DPOTrainer with DeepSpeed") {
  const TemporaryDirectory place;
  const std::string dpo = place.write("dpo.yaml",
                                      "model_name_or_path: org/model\nmax_length: 512\noutput_dir: o\n"
                                      "f_divergence_type: reverse_kl\nper_device_train_batch_size: 2\n");
  const std::string zero = place.write("accelerate.yaml",
                                       "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 4\n"
                                       "deepspeed_config: {zero_stage: 3}\n");
  const ImportedJob job = import_configs({zero, dpo});
  CHECK(job.stack == "trl-dpo-deepspeed");
  CHECK(job.unmodelled.empty());
  CHECK(value_of(job, "sharding") == "full-shard");
  CHECK(value_of(job, "checkpointing") == "full");
}

TEST_CASE("a key of FSDP that is left empty isn't given") {
  const TemporaryDirectory place;
  const auto imported = [&](const std::string& limit) {
    return import_configs({place.write("fsdp.yaml",
                                       "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 1, "
                                       "fsdp_use_orig_params: true, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
                                       "fsdp_limit_all_gathers: " +
                                           limit + "}\n"),
                           place.write("train.yaml", kTrainer)});
  };
  CHECK(imported("''").fields == imported("true").fields);
  CHECK(imported("''").unmodelled.empty());
  CHECK(!imported("false").unmodelled.empty());
}

TEST_CASE("the Trainer's AdamW of torchao is read; other blocks than its own are not modelled") {
  const TemporaryDirectory place;
  const auto imported = [&](const std::string& more) {
    return import_configs({place.write("train.yaml", kTrainer + more)});
  };
  CHECK(value_of(imported("optim: adamw_torch_8bit\n"), "optimizer") == "adamw-8bit:torchao");
  CHECK(value_of(imported("optim: adamw_torch_4bit\n"), "optimizer") == "adamw-4bit:torchao");
  CHECK(
      says(imported("optim: adamw_torch_4bit\noptim_args: block_size=128\n").unmodelled, "optim_args.block_size", ""));
  CHECK(!says(imported("optim: adamw_torch_4bit\noptim_args: weight=1\n").unmodelled, "optim_args.weight", ""));
  const auto of_axolotl = [&](const std::string& arguments) {
    return import_configs({place.write("axolotl.yaml",
                                       "base_model: org/model\nsequence_len: 512\nmicro_batch_size: 1\n"
                                       "optimizer: adamw_torch_4bit\noptim_args: " +
                                           arguments)});
  };
  CHECK(says(of_axolotl("\"block_size=128\"\n").unmodelled, "optim_args.block_size", "blocks"));
  CHECK(says(of_axolotl("{bf16_stochastic_round: true}\n").unmodelled, "optim_args.bf16_stochastic_round", "round"));
  CHECK(!says(of_axolotl("{weight: 1}\n").unmodelled, "optim_args.weight", ""));
}

TEST_CASE("accelerate's FSDP wraps nothing where no policy is named, the Trainer's own each layer") {
  const TemporaryDirectory place;
  const std::string fsdp = place.write("fsdp.yaml",
                                       "distributed_type: FSDP\nnum_processes: 8\n"
                                       "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}\n");
  const std::string trainer = place.write("train.yaml", kTrainer),
                    own = place.write("own.yaml", kTrainer + "fsdp: true\n");
  const std::string by_size = place.write("size.yaml",
                                          "distributed_type: FSDP\n"
                                          "fsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_version: 2}\n");
  CHECK(value_of(import_configs({fsdp, trainer}), "wrap") == "none");
  const std::string null = place.write("null.yaml",
                                       "distributed_type: FSDP\nnum_processes: 8\n"
                                       "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: null}\n");
  CHECK(value_of(import_configs({null, trainer}), "wrap") == "none");
  CHECK(value_of(import_configs({fsdp, own}), "wrap") == "");  // as by default
  CHECK(value_of(import_configs({own, fsdp}), "wrap") == "");
  CHECK(value_of(import_configs({place.write("layers.yaml", kFsdp), trainer}), "wrap") == "layer");
  CHECK(value_of(import_configs({by_size, trainer}), "wrap") == "size:100000000");
}

TEST_CASE("a setting takes the place of an assumption, whichever file is read first") {
  const TemporaryDirectory place;
  const std::string trainer = place.write("train.yaml", kTrainer);
  const std::string zero = place.write("zero.yaml",
                                       "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                                       "deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 4}\n");
  for (const std::vector<std::string>& files : {std::vector{trainer, zero}, std::vector{zero, trainer}}) {
    const ImportedJob job = import_configs(files);
    CHECK(value_of(job, "grad_accum") == "4");
    CHECK(job.stack == "deepspeed");
    CHECK(!says(job.assumed, "grad_accum", ""));
  }
}

TEST_CASE("two files that contradict each other are refused with both places") {
  const TemporaryDirectory place;
  const std::string trainer = place.write("train.yaml", kTrainer + "gradient_accumulation_steps: 8\n");
  const std::string zero =
      place.write("ds.json", "{\"zero_optimization\": {\"stage\": 3},\n \"gradient_accumulation_steps\": 4}");
  CHECK_THROWS_WITH_AS(import_configs({trainer, zero}),
                       doctest::Contains("ds.json:2: gradient_accumulation_steps: grad_accum is 4 here, and 8 by "
                                         "gradient_accumulation_steps in"),
                       InputError);
}

TEST_CASE("DeepSpeed's own AdamW comes before the Trainer's optimizer, and its others are not modelled") {
  const TemporaryDirectory place;
  const std::string trainer = place.write("train.yaml", kTrainer + "deepspeed: ds.json\noptim: adamw_torch\n");
  const auto imported = [&](const std::string& stage, const std::string& type, const std::string& more) {
    place.write("ds.json", R"({"zero_optimization": {"stage": )" + stage + R"(}, "optimizer": {"type": ")" + type +
                               R"(", "params": {"lr": "auto")" + more + "}}}");
    return import_configs({trainer});
  };
  for (const char* stage : {"1", "2", "3"}) {
    CAPTURE(stage);
    for (const char* type : {"AdamW", "Adam"}) {
      CAPTURE(type);
      CHECK(value_of(imported(stage, type, ""), "optimizer") == "adamw:deepspeed");
      CHECK(imported(stage, type, R"(, "torch_adam": false)").unmodelled.empty());
      for (const auto& [key, value] : {std::pair{"torch_adam", "true"}, {"fp32_optimizer_states", "false"}}) {
        const std::string more = std::string(", \"") + key + "\": " + value;
        CHECK(says(imported(stage, type, more).unmodelled, std::string("optimizer.params.") + key,
                   "another optimizer than DeepSpeed's"));
      }
    }
    CHECK(says(imported(stage, "Lamb", "").unmodelled, "optimizer.type", "another optimizer than DeepSpeed's AdamW"));
    CHECK(value_of(imported(stage, "Lamb", ""), "optimizer") == "adamw:foreach");
  }
}

TEST_CASE("overlapped reductions are a choice of every stage") {
  const TemporaryDirectory place;
  const auto imported = [&](const std::string& stage, const std::string& overlap) {
    return import_configs({place.write(
        "ds.json", R"({"zero_optimization": {"stage": )" + stage + R"(, "overlap_comm": )" + overlap + "}}")});
  };
  for (const char* stage : {"1", "2", "3"}) {
    CHECK(value_of(imported(stage, "true"), "overlap_comm") == "on");
    CHECK(value_of(imported(stage, "false"), "overlap_comm") == "off");
  }
}

TEST_CASE("ZeRO-3's sizes are one field, and offloaded parameters have their states with them") {
  const TemporaryDirectory place;
  const auto imported = [&](const std::string& keys) {
    return import_configs({place.write("ds.json", R"({"zero_optimization": {"stage": 3, )" + keys + "}}")});
  };
  const std::string is_auto = R"("stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto")";
  CHECK(value_of(imported(is_auto), "zero3_sizes") == "auto");
  CHECK(imported(is_auto).unmodelled.empty());
  CHECK(value_of(imported(is_auto + R"(, "sub_group_size": 0, "stage3_max_live_parameters": 1e9)"), "zero3_sizes") ==
        "prefetch_bucket_size=auto,param_persistence_threshold=auto,sub_group_size=0");
  CHECK(value_of(imported(R"("sub_group_size": 1e9, "stage3_max_reuse_distance": 1000000000)"), "zero3_sizes").empty());
  CHECK(value_of(imported(R"("max_reuse_distance": 5, "stage3_prefetch_bucket_size": 5e7)"), "zero3_sizes") ==
        "max_reuse_distance=5");
  // DeepSpeed takes any number; more than any model has is no limit.
  for (const char* large : {"1e18", "9000000000000000000", "1e30"}) {
    CAPTURE(large);
    CHECK(value_of(imported(std::string(R"("stage3_max_live_parameters": )") + large), "zero3_sizes") ==
          "max_live_parameters=1125899906842624");
  }
  CHECK_THROWS_WITH_AS(imported(R"("sub_group_size": 0.5)"), doctest::Contains("sub_group_size"), InputError);
  CHECK_THROWS_WITH_AS(imported(R"("sub_group_size": -1)"), doctest::Contains("sub_group_size"), InputError);
  // Two files, or two names of one size, that say different things.
  const std::string first = place.write("first.json", R"({"zero_optimization": {"stage": 3, "sub_group_size": 5}})");
  const std::string second = place.write("second.json", R"({"zero_optimization": {"stage": 3, "sub_group_size": 7}})");
  const std::string usual = place.write("usual.json", R"({"zero_optimization": {"stage": 3, "sub_group_size": 1e9}})");
  const std::string other =
      place.write("other.json", R"({"zero_optimization": {"stage": 3, "max_reuse_distance": 7}})");
  for (const std::string& differs : {second, usual}) {
    for (const auto& files : {std::vector{first, differs}, std::vector{differs, first}}) {
      CHECK_THROWS_WITH_AS(import_configs(files), doctest::Contains("first.json"), InputError);
      CHECK_THROWS_WITH_AS(import_configs(files), doctest::Contains(differs.c_str()), InputError);
    }
  }
  CHECK(value_of(import_configs({first, other}), "zero3_sizes") == "max_reuse_distance=7,sub_group_size=5");
  CHECK_THROWS_WITH_AS(imported(R"("max_live_parameters": 5, "stage3_max_live_parameters": 6)"),
                       doctest::Contains("max_live_parameters"), InputError);
  CHECK(says(imported(R"("sub_group_size": "auto")").unmodelled, "zero_optimization.sub_group_size",
             "the Trainer doesn't fill it in"));
  CHECK(says(imported(R"("offload_param": {"device": "cpu"})").unmodelled, "zero_optimization.offload_param",
             "without the optimizer's states"));
}

TEST_CASE("a file that another names is read from beside it, and said to be missing otherwise") {
  const TemporaryDirectory place;
  const std::string trainer = place.write("train.yaml", kTrainer + "deepspeed: ds.json\n");
  CHECK(says(import_configs({trainer}).unmodelled, "deepspeed", "isn't there"));
  place.write(
      "ds.json",
      R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}})");
  const ImportedJob job = import_configs({trainer});
  CHECK(job.unmodelled.empty());
  CHECK(job.files.size() == 2);
  CHECK(value_of(job, "offload") == "params");
}

TEST_CASE("what a command line says comes before its files") {
  const TemporaryDirectory place;
  const std::string fsdp = place.write("fsdp.yaml", kFsdp);
  const ImportedJob job = import_configs(
      {}, {"accelerate", "launch", "--config_file", fsdp, "--num_processes", "4", "train.py",
           "--per-device-train-batch-size", "1", "--fp16", "--learning_rate=1e-5", "--no_gradient_checkpointing"});
  CHECK(job.gpus.per_node == 4);
  CHECK(says(job.ignored, "num_processes", "the command line says 4"));
  CHECK(value_of(job, "precision") == "fp16-mixed");
  CHECK(value_of(job, "checkpointing") == "none");
}

TEST_CASE("a value of the wrong kind is refused with file, line and key") {
  const TemporaryDirectory place;
  const std::string file = place.write("train.yaml", "output_dir: out\nper_device_train_batch_size: many\n");
  CHECK_THROWS_WITH_AS(import_configs({file}),
                       doctest::Contains("train.yaml:2: per_device_train_batch_size: many is not a whole number"),
                       InputError);
  const std::string other = place.write("other.yaml", "a: 1\n");
  CHECK_THROWS_WITH_AS(import_configs({other}), doctest::Contains("is none of the configurations that are read"),
                       InputError);
}

TEST_CASE("what isn't modelled, what is unknown and what is ignored are told apart") {
  const TemporaryDirectory place;
  const ImportedJob job = import_configs({place.write(
      "train.yaml", kTrainer + "neftune_noise_alpha: 5\nunheard_of: 1\nseed: 42\ntorch_compile: false\n")});
  CHECK(says(job.unmodelled, "neftune_noise_alpha", "noise on the embeddings"));
  CHECK(says(job.ignored, "unheard_of", "knows of no such key"));
  CHECK(says(job.ignored, "seed", "no memory depends on it"));
  CHECK(says(job.ignored, "torch_compile", "off"));
}

TEST_CASE("--job takes another tool's file: model, stack, number of GPUs and fields, where flags leave them open") {
  const TemporaryDirectory place;
  const std::string trainer = place.write("train.yaml", kTrainer + "model_name_or_path: gpt2\n");
  JobFlags flags;
  flags.values.resize(100);
  flags.job_files = {trainer, place.write("fsdp.yaml", kFsdp)};
  flags.gpus = "H100-80GB";
  flags.has_stack = true;
  apply_configs(flags);
  CHECK(flags.model == "gpt2");
  CHECK(flags.gpus == "8xH100-80GB");
  CHECK(flags.stack == "transformers");
  CHECK(flags.job_files.empty());
  CHECK(flags.unmodelled.empty());
  JobFlags without;
  without.job_files = {trainer};
  without.has_stack = true;
  CHECK_THROWS_WITH_AS(apply_configs(without), doctest::Contains("--gpus: missing"), InputError);
}

TEST_CASE("a job file of ours is no foreign one") {
  const TemporaryDirectory place;
  CHECK(!is_foreign_config(place.write("job.json", R"({"seq_len": 128, "optimizer": "adamw:fused"})")));
  CHECK(is_foreign_config(place.write("ds.json", R"({"train_batch_size": 8})")));
  CHECK(is_foreign_config(place.write("train.yaml", kTrainer)));
}

}  // namespace vramfit
