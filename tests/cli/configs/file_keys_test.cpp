// What keys of files mean where a glance would take them for something else, and that none is dropped in silence.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

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

const std::string kTrainer = "output_dir: out\nper_device_train_batch_size: 2\nbf16: true\n";
const std::string kAxolotl = "base_model: org/model\nsequence_len: 512\nmicro_batch_size: 2\nflash_attention: true\n";
const std::string kFactory = "model_name_or_path: org/model\nstage: sft\ncutoff_len: 512\n";
const std::string kSft = "model_name_or_path: org/model\ndataset_name: d\noutput_dir: o\npacking: false\n";

}  // namespace

TEST_CASE("what DeepSpeed offloads a part of is not modelled, and each key of the block is spoken of") {
  const auto offloads = [&](const std::string& more) {
    return imported("ds.json",
                    R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu")" + more + "}}}");
  };
  const std::string block = "zero_optimization.offload_optimizer.";
  CHECK(says(offloads(R"(, "ratio": 0.3)").unmodelled, block + "ratio", "stay on the GPU"));
  CHECK(offloads(R"(, "ratio": 1.0)").unmodelled.empty());
  CHECK(says(offloads(R"(, "super_offload": true)").unmodelled, block + "super_offload", "another optimizer"));
  for (const char* const key : {"nvme_path", "buffer_count", "pipeline_read", "pipeline_write", "fast_init"}) {
    CAPTURE(key);
    CHECK(says(offloads(std::string(", \"") + key + "\": 1").ignored, block + key, "only for offload to disk"));
  }
  CHECK(says(offloads(R"(, "unheard_of": 1)").ignored, block + "unheard_of", "knows of no such key"));
}

TEST_CASE("SGD without momentum, or with weight decay, is not modelled, wherever its keys stand") {
  const auto unmodelled = [](const std::string& name, const std::string& text) {
    std::string all;
    for (const Finding& finding : imported(name, text).unmodelled) all += finding.says + "\n";
    return all;
  };
  const auto of_trainer = [&](const std::string& more) { return unmodelled("train.yaml", kTrainer + more); };
  const std::string with_momentum = "optim: sgd\noptim_args: nesterov=True, momentum=0.9\n";
  CHECK(of_trainer(with_momentum).empty());
  CHECK(of_trainer(with_momentum + "weight_decay: 0.0\n").empty());
  CHECK(of_trainer(with_momentum + "weight_decay:\n").empty());
  CHECK(of_trainer(with_momentum + "weight_decay: 0.1\n").find("SGD with weight decay") != std::string::npos);
  CHECK(of_trainer("weight_decay: 0.1\n" + with_momentum).find("SGD with weight decay") != std::string::npos);
  CHECK(of_trainer("weight_decay: 0.1\noptim: adamw_torch\n").empty());
  for (const char* const arguments : {"", "optim_args: momentum=0.0\n", "optim_args: dampening=0.1\n"}) {
    CAPTURE(arguments);
    CHECK(of_trainer(std::string("optim: sgd\n") + arguments).find("SGD without momentum") != std::string::npos);
  }
  const std::string of_axolotl = kAxolotl + "optimizer: sgd\noptim_args: {momentum: 0.9}\n";
  CHECK(unmodelled("axolotl.yaml", of_axolotl).find("SGD") == std::string::npos);
  CHECK(unmodelled("axolotl.yaml", of_axolotl + "weight_decay: 0.1\n").find("SGD with") != std::string::npos);
}

TEST_CASE("a value that no reader looked at is listed, however deep it lies") {
  const ImportedJob job = imported("sft.yaml", kSft +
                                                   "parallelism_config:\n  dp_shard_size: 2\n  more: {inner: 3}\n"
                                                   "model_init_kwargs: {dtype: bfloat16, unheard_of: 1}\n");
  CHECK(says(job.ignored, "parallelism_config.more", "knows of no such key"));
  CHECK(says(job.ignored, "model_init_kwargs.unheard_of", "knows of no such key"));
  const ImportedJob tune = imported("tune.yaml",
                                    "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n"
                                    "optimizer: {_component_: torch.optim.AdamW, fused: true, lr: 1, amsgrad: true}\n"
                                    "loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss, odd: 1}\n");
  CHECK(says(tune.unmodelled, "optimizer.amsgrad", "a third average"));
  CHECK(says(tune.ignored, "optimizer.lr", "no memory depends on it"));
  CHECK(says(tune.ignored, "loss.odd", "knows of no such key"));
}

TEST_CASE("DeepSpeed's sizes are read by both of their names") {
  const ImportedJob job = imported(
      "ds.json", R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 7, "param_persistence_threshold": 0}})");
  CHECK(value_of(job, "zero3_sizes") == "prefetch_bucket_size=7,param_persistence_threshold=0");
}

TEST_CASE("axolotl's files without a word of it train in bf16, with expandable segments") {
  const ImportedJob job = imported("a.yaml", kAxolotl);
  CHECK(value_of(job, "precision") == "bf16-mixed");
  CHECK(value_of(job, "storage_dtype") == "bf16");
  CHECK(value_of(job, "allocator") == "expandable");
  CHECK(says(job.assumed, "allocator", "roundup_power2_divisions:16"));
  CHECK(imported("a.yaml", kAxolotl + "bf16: auto\n").fields == job.fields);
  CHECK(value_of(imported("a.yaml", kAxolotl + "bf16: false\n"), "precision") == "fp32");
  CHECK(value_of(imported("a.yaml", kAxolotl + "bf16: false\nbfloat16: true\n"), "precision") == "bf16-pure");
  CHECK(says(imported("a.yaml", kAxolotl + "bf16: auto\nfp16: true\n").unmodelled, "", "weights in fp16"));
}

TEST_CASE("axolotl's kernels of adapters are on unless a key or a limit of theirs says otherwise") {
  const std::string lora = kAxolotl + "adapter: lora\nlora_target_linear: true\n";
  const auto kernels_with = [&](const std::string& more) {
    const ImportedJob job = imported("a.yaml", lora + more);
    CHECK(job.unmodelled.empty());
    return value_of(job, "kernels");
  };
  CHECK(kernels_with("") == "axolotl");
  CHECK(says(imported("a.yaml", lora).assumed, fact::kOwnKernels, "where none of lora_mlp_kernel"));
  CHECK(kernels_with("lora_mlp_kernel: false\n").empty());
  CHECK(kernels_with("lora_embedding_kernel: true\n").empty());
  CHECK(kernels_with("load_in_8bit: true\n").empty());
  CHECK(kernels_with("trust_remote_code: true\n").empty());
  CHECK(says(imported("a.yaml", lora + "trust_remote_code: true\nlora_o_kernel: true\n").unmodelled, "",
             "which axolotl refuses"));
  CHECK(value_of(imported("a.yaml", lora + "rl: dpo\n"), "kernels").empty());
  CHECK(kernels_with("lora_o_kernel: true\nlora_mlp_kernel: true\n") == "axolotl:qkv=off");
  CHECK(kernels_with("plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rope: true\n")
            .starts_with("liger:rope=on"));
  CHECK(
      kernels_with("plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rope: true\n").ends_with("=off+axolotl"));
  CHECK(value_of(imported("a.yaml", lora + "fsdp_config: {offload_params: false}\n"), "kernels").empty());  // FSDP1
  CHECK(value_of(imported("a.yaml", kAxolotl), "kernels").empty());
  CHECK(value_of(imported("a.yaml", kAxolotl + "lora_o_kernel: true\n"), "kernels").empty());
}

TEST_CASE("axolotl's batch_size is that of a GPU's step") {
  CHECK(value_of(imported("a.yaml", kAxolotl + "batch_size: 16\n"), "grad_accum") == "8");
  CHECK(value_of(imported("a.yaml", kAxolotl + "batch_size: 16\n"), "global_batch").empty());
  CHECK(says(imported("a.yaml", kAxolotl + "batch_size: 16\ngradient_accumulation_steps: 2\n").unmodelled, "",
             "not both"));
}

TEST_CASE("rows without a limit have no length of TRL's") {
  const ImportedJob job = imported("sft.yaml", kSft + "max_length: null\n");
  CHECK(value_of(job, "seq_len").empty());
  CHECK(says(job.understood, "max_length", "--seq-len"));
  CHECK(job.open_length.ends_with("sft.yaml:5: max_length"));
  CHECK(command_of(job).find(" --seq-len LONGEST") != std::string::npos);
  CHECK(value_of(imported("sft.yaml", kSft), "seq_len") == "1024");
}

TEST_CASE("what the Trainer and FSDP both checkpoint is refused with both places, as the Trainer does") {
  const TemporaryDirectory place;
  const std::string fsdp = place.write("fsdp.yaml",
                                       "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, "
                                       "fsdp_activation_checkpointing: true,\n"
                                       "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n");
  const std::string both = place.write("both.yaml", kTrainer + "gradient_checkpointing: true\n");
  const std::string off = place.write("off.yaml", kTrainer + "gradient_checkpointing: false\n");
  const std::string sft = place.write("sft.yaml", kSft);
  for (const auto& files : {std::vector{fsdp, both}, std::vector{both, fsdp}}) {
    CHECK_THROWS_WITH_AS(import_configs(files), doctest::Contains("fsdp_config.fsdp_activation_checkpointing"),
                         InputError);
    CHECK_THROWS_WITH_AS(import_configs(files), doctest::Contains("both.yaml:4: gradient_checkpointing"), InputError);
  }
  CHECK_THROWS_WITH_AS(import_configs({fsdp, sft}), doctest::Contains("TRL's default"), InputError);
  for (const auto& files : {std::vector{fsdp, off}, std::vector{off, fsdp}}) {
    CHECK(value_of(import_configs(files), "checkpointing") == "full");
  }
}

TEST_CASE("arguments that switch something on by themselves, or off, are read as that") {
  CHECK(says(imported("t.yaml", kTrainer + "torch_compile_mode: default\n").unmodelled, "torch_compile_mode",
             "torch.compile"));
  CHECK(value_of(imported("t.yaml", kTrainer + "full_determinism: true\n"), "deterministic") == "on");
  for (const char* const none : {"0", "0.0", "-1", "null"}) {
    CAPTURE(none);
    const ImportedJob job = imported("t.yaml", kTrainer + "max_grad_norm: " + none + "\n");
    CHECK(says(job.understood, "max_grad_norm", "--no-clip"));
    CHECK_FALSE(job.clips);
    CHECK(command_of(job).ends_with(" --no-clip"));
  }
  for (const char* const some : {"1.0", "0.3"}) {
    CHECK(imported("t.yaml", kTrainer + "max_grad_norm: " + some + "\n").clips);
  }
  CHECK(command_of(imported("t.yaml", kTrainer)).find("--no-clip") == std::string::npos);
  CHECK(says(imported("ds.json", R"({"zero_optimization": {"stage": 2}, "gradient_clipping": 0})").understood,
             "gradient_clipping", "--no-clip"));
  const std::string accelerate =
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  gradient_clipping: ";
  for (const auto& [value, clips] : {std::pair{"0.0", false}, std::pair{"1.0", true}, std::pair{"auto", true}}) {
    CAPTURE(value);
    CHECK(imported("accelerate.yaml", accelerate + value + "\n").clips == clips);
  }
}

TEST_CASE("torchtune clips where clip_grad_norm says so, and has no length without the tokenizer's") {
  const std::string recipe =
      "model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_attn_modules: [q_proj]}\n"
      "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: p, max_seq_len: null}\n"
      "optimizer: {_component_: torch.optim.AdamW, fused: true}\nbatch_size: 2\n";
  for (const char* const none : {"", "clip_grad_norm: null\n"}) {
    const ImportedJob job = imported("lora.yaml", recipe + none);
    CHECK_FALSE(job.clips);
    CHECK(command_of(job).ends_with(" --seq-len LONGEST --no-clip"));
    CHECK_FALSE(says(job.ignored, "clip_grad_norm", ""));
  }
  CHECK(imported("lora.yaml", recipe + "clip_grad_norm: 1.0\n").clips);
}

TEST_CASE("the Trainer's keys of FSDP belong to the fsdp that is given") {
  const std::string fsdp = kTrainer + "fsdp: full_shard auto_wrap\n";
  const ImportedJob job = imported("t.yaml", fsdp + "fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n");
  CHECK(says(job.ignored, "fsdp_transformer_layer_cls_to_wrap", "which layers"));
  CHECK(value_of(imported("t.yaml", fsdp + "fsdp_min_num_params: 2000\n"), "wrap") == "size:2000");
  CHECK(value_of(imported("t.yaml", fsdp + "fsdp_min_num_params: 0\n"), "wrap").empty());
  CHECK(value_of(imported("t.yaml", kTrainer + "fsdp_min_num_params: 2000\n"), "wrap").empty());
}

TEST_CASE("the Trainer's hybrid_shard_zero2 isn't read as hybrid_shard") {
  for (const char* const words : {"hybrid_shard_zero2 auto_wrap", "auto_wrap hybrid_shard"}) {
    CAPTURE(words);
    const bool is_zero2 = std::string_view(words).find("zero2") != std::string_view::npos;
    const ImportedJob job = imported("t.yaml", kTrainer + "fsdp: " + words + "\n");
    CHECK(value_of(job, "sharding") == (is_zero2 ? "hybrid-shard-zero2" : "hybrid-shard"));
  }
}

TEST_CASE("what only DDP reads is not modelled where it is another DDP, and where DDP is what trains") {
  const auto says_ddp = [](const ImportedJob& job) {
    return says(job.unmodelled, "", "other than the Trainer's usual ones");
  };
  CHECK(says_ddp(imported("t.yaml", kTrainer + "ddp_bucket_cap_mb: 200\n")));
  CHECK(!says_ddp(imported("t.yaml", kTrainer + "ddp_bucket_cap_mb: 25\n")));
  CHECK(!says_ddp(imported("t.yaml", kTrainer + "ddp_bucket_cap_mb: 200\nfsdp: true\n")));
}

TEST_CASE("whether DDP looks for unused parameters is a field where it is another than the Trainer's usual one") {
  const std::string no = "ddp_find_unused_parameters: false\n";
  CHECK(value_of(imported("t.yaml", kTrainer + no), "find_unused_parameters") == "off");
  CHECK(value_of(imported("t.yaml", kTrainer + no + "gradient_checkpointing: true\n"), "find_unused_parameters") == "");
  CHECK(value_of(imported("t.yaml", kTrainer + no + "fsdp: true\n"), "find_unused_parameters") == "");
  CHECK(value_of(imported("l.yaml", kFactory + "finetuning_type: lora\n"), "find_unused_parameters") == "off");
  CHECK(value_of(imported("l.yaml", kFactory + "finetuning_type: full\n"), "find_unused_parameters") == "");
  CHECK(value_of(imported("a.yaml", kAxolotl), "find_unused_parameters") == "off");
  CHECK(value_of(imported("a.yaml", kAxolotl + "ddp: false\n"), "find_unused_parameters") == "");
  CHECK(value_of(imported("a.yaml", kAxolotl + "ddp: false\nddp_find_unused_parameters: true\n"),
                 "find_unused_parameters") == "");
  CHECK(value_of(imported("a.yaml", kAxolotl + "gradient_checkpointing: true\n"), "find_unused_parameters") == "");
}

TEST_CASE("checkpoints re-enter autograd as each tool's key or default says") {
  const auto reenters = [](const std::string& file, const std::string& text) {
    const ImportedJob job = imported(file, text);
    CHECK(job.unmodelled.empty());
    return value_of(job, "reentrant_checkpoints") == "on";
  };
  const std::string full = kFactory + "finetuning_type: full\n";
  CHECK(reenters("l.yaml", full));
  CHECK(!reenters("l.yaml", full + "use_reentrant_gc: false\n"));
  CHECK(!reenters("l.yaml", full + "disable_gradient_checkpointing: true\n"));
  CHECK(reenters("l.yaml", full + "fsdp: full_shard\n"));
  CHECK(reenters("l.yaml", full + "gradient_checkpointing: true\n"));
  CHECK(reenters("l.yaml", full + "gradient_checkpointing: false\n"));
  CHECK(!reenters("l.yaml", full + "use_reentrant_gc: false\ngradient_checkpointing_kwargs:\n  use_reentrant: true\n"));
  const std::string checkpointed = "gradient_checkpointing: true\n", options = "gradient_checkpointing_kwargs:\n  ";
  CHECK(reenters("a.yaml", kAxolotl + checkpointed));
  CHECK(!reenters("a.yaml", kAxolotl + checkpointed + options + "use_reentrant: false\n"));
  CHECK(!reenters("a.yaml", kAxolotl));
  CHECK(!reenters("t.yaml", kTrainer + checkpointed));
  CHECK(reenters("t.yaml", kTrainer + checkpointed + options + "use_reentrant: true\n"));
  CHECK(reenters("t.yaml", kTrainer + checkpointed + options + "preserve_rng_state: false\n"));
  CHECK(reenters("t.yaml", kTrainer + checkpointed + "gradient_checkpointing_kwargs: '{\"use_reentrant\": true}'\n"));
  CHECK(!reenters("t.yaml", kTrainer + options + "use_reentrant: true\n"));
}

TEST_CASE("beside adapters under ZeRO-3, TRL changes use_reentrant to true where options of checkpoints are given") {
  const std::string zero3 = R"(deepspeed: {zero_optimization: {stage: 3}}
)";
  const std::string no = "gradient_checkpointing_kwargs:\n  use_reentrant: false\n", lora = "use_peft: true\n";
  CHECK(value_of(imported("sft.yaml", kSft + zero3 + no + lora), "reentrant_checkpoints") == "on");
  CHECK(value_of(imported("sft.yaml", kSft + zero3 + lora), "reentrant_checkpoints") == "");
  CHECK(value_of(imported("sft.yaml", kSft + zero3 + no), "reentrant_checkpoints") == "");
  CHECK(value_of(imported("sft.yaml", kSft + no + lora), "reentrant_checkpoints") == "");
}

TEST_CASE("TRL's single target is PEFT's regular expression, of which endings of names alone are read") {
  const auto of_targets = [](const std::string& targets) {
    return imported("sft.yaml", kSft + "use_peft: true\nlora_target_modules: " + targets + "\n");
  };
  CHECK(value_of(of_targets("[q_proj, v_proj]"), "lora_targets") == "q_proj,v_proj");
  CHECK(value_of(of_targets("all-linear"), "lora_targets") == "all-linear");
  CHECK(value_of(of_targets("['.*\\.down_proj']"), "lora_targets") == "down_proj");
  CHECK(value_of(of_targets("'.*\\.(q_proj|v_proj)'"), "lora_targets") == "q_proj,v_proj");
  CHECK(value_of(of_targets("'.*\\.self_attn\\.q_proj'"), "lora_targets") == "self_attn.q_proj");
  for (const char* const other :
       {"q_proj", "[q_proj]", "'q_proj,v_proj'", "all", "'.*q_proj'", "'.*\\.(q|k).proj'", "'.*\\.q|v'",
        "'.*\\.lm_head'", "'.*\\.(q_proj|lm_head)'", "'.*\\.self_attn.q_proj'"}) {
    CAPTURE(other);
    CHECK(says(of_targets(other).unmodelled, "lora_target_modules", "regular expression"));
  }
}

TEST_CASE("FSDP of one file and DeepSpeed of another are refused with both places, other kinds become DeepSpeed") {
  const TemporaryDirectory place;
  const std::string launcher = "num_processes: 2\ndistributed_type: ";
  const std::string fsdp = place.write("fsdp.yaml", launcher + "FSDP\n"),
                    ddp = place.write("ddp.yaml", launcher + "MULTI_GPU\n");
  const std::string zero = place.write("ds.json", R"({"zero_optimization": {"stage": 2}})");
  const std::string trainer = place.write("train.yaml", kTrainer + "deepspeed: ds.json\n");
  for (const auto& files :
       {std::vector{fsdp, trainer}, std::vector{trainer, fsdp}, std::vector{fsdp, zero}, std::vector{zero, fsdp}}) {
    CHECK_THROWS_WITH_AS(import_configs(files), doctest::Contains("fsdp.yaml:2"), InputError);
  }
  for (const auto& files : {std::vector{ddp, trainer}, std::vector{trainer, ddp}}) {
    const ImportedJob job = import_configs(files);
    CHECK(job.stack == "deepspeed");
    CHECK(job.gpus.per_node == 2);
  }
}

TEST_CASE("a loop of one's own is counted with cpu_ram_efficient_loading, and not modelled without") {
  const auto loop = [](const std::string& loading) {
    return imported("fsdp.yaml",
                    "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
                    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                    "  fsdp_cpu_ram_efficient_loading: " +
                        loading + "\n");
  };
  CHECK(loop("true").unmodelled.empty());
  CHECK(says(loop("false").unmodelled, "", "fsdp.yaml:6: fsdp_config.fsdp_cpu_ram_efficient_loading"));
}

}  // namespace vramfit
