// Command lines as people paste them: what stands before a launcher, and what each program's own words are.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/configs/import.h"
#include "cli/configs/job_configs.h"
#include "tests/cli/configs/imported.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::says;
using testing::TemporaryDirectory;
using testing::value_of;
using Words = std::vector<std::string>;

ImportedJob typed(const Words& words) { return import_configs({}, words); }

const std::string kSft =
    "model_name_or_path: org/model\nmax_length: 512\noutput_dir: o\nper_device_train_batch_size: 2\n"
    "gradient_accumulation_steps: 4\n";
const std::string kZero =
    "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 4\ndeepspeed_config: {zero_stage: 3}\n";
const std::string kAxolotl =
    "base_model: org/model\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\ngradient_checkpointing: "
    "true\nflash_attention: true\n";
const std::string kFactory =
    "model_name_or_path: org/model\nstage: sft\nfinetuning_type: lora\ncutoff_len: 2048\nlora_rank: 8\n"
    "per_device_train_batch_size: 1\nbf16: true\n";
const std::string kTune =
    "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n"
    "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 1024}\n"
    "optimizer: {_component_: torch.optim.AdamW, fused: true}\n"
    "loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}\n"
    "batch_size: 2\ndtype: bf16\nclip_grad_norm: 1.0\n";

}  // namespace

TEST_CASE("TRL's --accelerate_config is accelerate's file, and what TRL doesn't know is for its launcher") {
  const TemporaryDirectory place;
  const std::string sft = place.write("sft.yaml", kSft), zero = place.write("accelerate.yaml", kZero);
  const ImportedJob job = typed({"trl", "sft", "--config", sft, "--accelerate_config", zero});
  CHECK(job.fields == import_configs({sft, zero}).fields);
  CHECK(job.stack == "trl-deepspeed");
  CHECK(job.gpus.per_node == 4);
  const ImportedJob more = typed({"trl", "sft", "--config", sft, "--accelerate_config", zero, "--num_processes", "2"});
  CHECK(more.gpus.per_node == 2);
  CHECK(says(more.ignored, "num_processes", "the command line says 2"));
  CHECK(typed({"trl", "sft", "--config", sft, "--num_processes", "4"}).gpus.per_node == 4);
  // The key of a file is the flag.
  const std::string named = place.write("named.yaml", kSft + "accelerate_config: accelerate.yaml\nnum_processes: 2\n");
  CHECK(import_configs({named}).fields == more.fields);
  CHECK(import_configs({named}).gpus.per_node == 2);
}

TEST_CASE("a configuration of accelerate that isn't there is missed, whatever its name") {
  for (const char* const name : {"nosuch", "nosuch.yaml"}) {
    CAPTURE(name);
    const ImportedJob job = typed({"accelerate", "launch", "--config_file", name, "sft.py", "--bf16"});
    CHECK(says(job.unmodelled, "config_file", "isn't there"));
  }
}

TEST_CASE("what TRL assumes follows from its file and its flags together") {
  const TemporaryDirectory place;
  const std::string sft = place.write("sft.yaml", kSft + "bf16: false\nuse_peft: true\n");
  const ImportedJob job = typed({"trl", "sft", "--config", sft, "--lora_r", "4", "--max_length", "1024"});
  CHECK(value_of(job, "precision") == "fp32");
  CHECK(value_of(job, "seq_len") == "1024");
  CHECK(value_of(job, "lora_rank") == "4");
  CHECK(says(job.ignored, "max_length", "the command line says 1024"));
  const std::string reward = place.write("reward.yaml", kSft + "use_peft: true\nlora_task_type: SEQ_CLS\n");
  CHECK(typed({"trl", "reward", "--config", reward, "--use_peft"}).unmodelled.empty());
  const ImportedJob script = typed({"accelerate", "launch", "sft.py", "--config", sft, "--max_length", "1024"});
  CHECK(value_of(script, "precision") == "fp32");
  CHECK(value_of(script, "seq_len") == "1024");
}

TEST_CASE("configurations that TRL brings are known by name") {
  const TemporaryDirectory place;
  const std::string sft = place.write("sft.yaml", kSft);
  const auto named = [&](const std::string& name) {
    return typed({"trl", "sft", "--config", sft, "--accelerate_config", name});
  };
  for (const auto& [name, sharding, stack] : {std::tuple{"fsdp2", "full-shard", "trl"},
                                              {"zero1", "shard-optimizer", "trl-deepspeed"},
                                              {"zero2", "shard-grad-op", "trl-deepspeed"},
                                              {"zero3", "full-shard", "trl-deepspeed"},
                                              {"multi_gpu", "no-shard", "trl"}}) {
    CAPTURE(name);
    const ImportedJob job = named(name);
    CHECK(value_of(job, "sharding") == sharding);
    CHECK(job.stack == stack);
    CHECK(job.gpus.per_node == 8);
    CHECK(value_of(job, "grad_accum") == "4");
    CHECK(job.unmodelled.empty());
  }
  CHECK(named("fsdp1").unmodelled.empty());
  CHECK(value_of(named("fsdp1"), "runtime") == "pytorch-fsdp1");
  CHECK(value_of(named("fsdp1"), "prefetch").find("forward=1") != std::string::npos);
  CHECK(named("single_gpu").gpus.per_node == 1);
  CHECK(says(named("zero4").unmodelled, "accelerate_config", "isn't there"));
}

TEST_CASE("key=value changes LLaMA-Factory's file, and what no longer counts is said") {
  const TemporaryDirectory place;
  const std::string file = place.write("lf.yaml", kFactory);
  const ImportedJob job = typed({"llamafactory-cli", "train", file, "per_device_train_batch_size=4", "cutoff_len=8192",
                                 "lora_rank=16", "lora_target=[q_proj,v_proj]"});
  CHECK(value_of(job, "micro_batch") == "4");
  CHECK(value_of(job, "seq_len") == "8192");
  CHECK(value_of(job, "lora_alpha") == "32");  // twice the rank, by default
  CHECK(value_of(job, "lora_targets") == "q_proj,v_proj");
  CHECK(value_of(job, "checkpointing") == "full");
  CHECK(says(job.ignored, "cutoff_len", "the command line says 8192"));
  const ImportedJob several =
      typed({"CUDA_VISIBLE_DEVICES=0,1", "FORCE_TORCHRUN=1", "llamafactory-cli", "train", file});
  CHECK(several.gpus.per_node == 2);
  CHECK(typed({"NPROC_PER_NODE=4", "llamafactory-cli", "train", file}).gpus.per_node == 4);
}

TEST_CASE("options of axolotl are keys of its file, and others its launcher's") {
  const TemporaryDirectory place;
  const std::string file = place.write("ax.yml", kAxolotl);
  const ImportedJob job = typed({"axolotl", "train", file, "--micro-batch-size", "4", "--num-processes", "4"});
  CHECK(value_of(job, "micro_batch") == "4");
  CHECK(value_of(job, "checkpointing") == "full");
  CHECK(job.gpus.per_node == 4);
  CHECK(job.unmodelled.empty());
  CHECK(says(job.ignored, "micro_batch_size", "the command line says 4"));
  CHECK(value_of(typed({"axolotl", "train", "--no-gradient-checkpointing", file}), "checkpointing") == "none");
  CHECK(typed({"axolotl", "train", file, "--launcher", "torchrun", "--", "--nproc_per_node=2"}).gpus.per_node == 2);
  const ImportedJob module =
      typed({"accelerate", "launch", "--num_processes", "2", "-m", "axolotl.cli.train", file, "--sequence_len=1024"});
  CHECK(value_of(module, "seq_len") == "1024");
  CHECK(module.gpus.per_node == 2);
}

TEST_CASE("tune run is torchtune's: a file with key=value and ~key, and a name of its own is written first") {
  const TemporaryDirectory place;
  const std::string file = place.write("tune.yaml", kTune);
  const ImportedJob job = typed({"tune", "run", "--nproc_per_node", "4", "full_finetune_distributed", "--config", file,
                                 "batch_size=4", "tokenizer.max_seq_len=2048", "~clip_grad_norm"});
  CHECK(job.stack == "torchtune");
  CHECK(job.gpus.per_node == 4);
  CHECK(value_of(job, "micro_batch") == "4");
  CHECK(value_of(job, "seq_len") == "2048");
  CHECK(value_of(job, "precision") == "bf16-pure");
  CHECK(says(job.ignored, "batch_size", "the command line says 4"));
  CHECK(says(job.ignored, "clip_grad_norm", "takes it away"));
  CHECK(typed({"tune", "run", "full_finetune_single_device", "--config", file}).gpus.per_node == 1);
  const Words named{
      "tune", "run", "--nproc_per_node", "4", "full_finetune_distributed", "--config", "llama3_1/8B_full"};
  CHECK_THROWS_WITH_AS(typed(named), doctest::Contains("\"tune cp llama3_1/8B_full 8B_full.yaml\""), InputError);
  CHECK_THROWS_WITH_AS(typed({"tune", "run", "full_finetune_distributed", "--config", file, "~unheard"}),
                       doctest::Contains("has no such key"), InputError);
}

TEST_CASE("torchtitan's flags change its tables") {
  const TemporaryDirectory place;
  const std::string file = place.write("titan.toml",
                                       "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nseq_len = 8192\n"
                                       "local_batch_size = 1\n");
  const ImportedJob job = typed({"torchrun", "--nproc_per_node=8", "-m", "torchtitan.train", "--job.config_file", file,
                                 "--training.seq_len", "4096", "--compile.enable"});
  CHECK(job.stack == "torchtitan");
  CHECK(job.gpus.per_node == 8);
  CHECK(value_of(job, "seq_len") == "4096");
  CHECK(says(job.unmodelled, "compile", "torch.compile"));
  CHECK(says(job.ignored, "training.seq_len", "the command line says 4096"));
}

TEST_CASE("variables before a launch have the allocator and the number of GPUs") {
  const Words flags{"train.py", "--bf16", "--output_dir", "o"};
  const auto with = [&](Words words) {
    words.insert(words.end(), flags.begin(), flags.end());
    return typed(words);
  };
  const std::string expandable = "expandable_segments:True";
  for (const std::string& name : {std::string("PYTORCH_CUDA_ALLOC_CONF"), std::string("PYTORCH_ALLOC_CONF")}) {
    CHECK(value_of(with({name + "=" + expandable, "torchrun"}), "allocator") == "expandable");
    CHECK(value_of(with({"nohup", "env", name + "=" + expandable, "torchrun"}), "allocator") == "expandable");
  }
  CHECK(says(with({"PYTORCH_ALLOC_CONF=nonsense", "torchrun"}).unmodelled, "PYTORCH_ALLOC_CONF", "can't be read"));
  CHECK(with({"CUDA_VISIBLE_DEVICES=0,1", "accelerate", "launch"}).gpus.per_node == 2);
  CHECK(with({"CUDA_VISIBLE_DEVICES=0,1", "accelerate", "launch", "--num_processes", "4"}).gpus.per_node == 4);
  CHECK(with({"CUDA_VISIBLE_DEVICES=0,1,2", "torchrun", "--nproc_per_node", "gpu"}).gpus.per_node == 3);
  CHECK(with({"CUDA_VISIBLE_DEVICES=0", "python"}).gpus.per_node == 1);
  CHECK(says(with({"CUDA_VISIBLE_DEVICES=0,1", "python"}).unmodelled, "CUDA_VISIBLE_DEVICES", "DataParallel"));
  CHECK(with({"deepspeed", "--include", "localhost:0,1"}).gpus.per_node == 2);
  CHECK(with({"torchrun"}).gpus.per_node == 1);
}

TEST_CASE("what only starts another program is read over, and tasks of srun are GPUs where no launcher has them") {
  for (const Words& before :
       {Words{"nohup"}, Words{"time"}, Words{"sudo", "-E"}, Words{"uv", "run", "--no-sync"}, Words{"poetry", "run"},
        Words{"srun", "--nodes=1", "--ntasks-per-node=1"}, Words{"env", "A=1"}, Words{"/usr/bin/env", "-u", "B"}}) {
    Words words = before;
    for (const char* const word : {"torchrun", "--nproc_per_node", "4", "train.py", "--bf16", "--output_dir", "o"}) {
      words.emplace_back(word);
    }
    CAPTURE(before.front());
    const ImportedJob job = typed(words);
    CHECK(job.gpus.nodes == 1);
    CHECK(job.gpus.per_node == 4);
    CHECK(value_of(job, "precision") == "bf16-mixed");
    CHECK(says(job.ignored, "before the launch", "starts what follows"));
  }
  const ImportedJob tasks =
      typed({"srun", "-N", "2", "--ntasks-per-node", "8", "python", "train.py", "--bf16", "--output_dir", "o"});
  CHECK(tasks.gpus.nodes == 2);
  CHECK(tasks.gpus.per_node == 8);
}

TEST_CASE("a script's exports are its launch's environment, and where output goes is no argument") {
  const TemporaryDirectory place;
  const std::string script = place.write("train.sh",
                                         "#!/bin/bash\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
                                         "nohup torchrun --nproc_per_node 2 train.py --output_dir o --bf16 True "
                                         "> log 2>&1 &\ntorchrun train.py --bf16\n");
  const ImportedJob job = import_configs({script});
  CHECK(value_of(job, "allocator") == "expandable");
  CHECK(value_of(job, "precision") == "bf16-mixed");
  CHECK(job.gpus.per_node == 2);
  CHECK(says(job.assumed, "", "the first of its commands"));
}

TEST_CASE("words that no tool takes are said") {
  const ImportedJob job = typed({"python", "train.py", "model.layers=4", "word", "--bf16", "--output_dir", "o"});
  CHECK(says(job.ignored, "model.layers", "no file that was read"));
  CHECK(says(job.ignored, "a word", "no flag's value"));
}

TEST_CASE("--stack says for which of TRL's trainers a file is") {
  const TemporaryDirectory place;
  const std::string dpo = place.write("dpo.yaml", kSft + "beta: 0.1\n");
  const std::string grpo = place.write("grpo.yaml",
                                       "model_name_or_path: org/model\noutput_dir: o\nnum_generations: 8\n"
                                       "max_completion_length: 256\nper_device_train_batch_size: 8\n");
  for (const auto& [file, stack] :
       {std::pair{dpo, "trl-dpo"}, {dpo, "trl-dpo-deepspeed"}, {grpo, "trl-grpo"}, {grpo, "trl-grpo-deepspeed"}}) {
    JobFlags flags;
    flags.values.resize(100);
    flags.job_files = {file};
    flags.gpus = "1xH100-80GB";
    flags.has_stack = true;
    flags.stack = stack;
    apply_configs(flags);
    CAPTURE(stack);
    CHECK(flags.unmodelled.empty());
  }
  CHECK(says(import_configs({dpo}).unmodelled, "beta", "--stack trl-dpo"));
}

}  // namespace vramfit
