#include "job/stacks/stacks.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/job_fields.h"

namespace vramfit {

namespace {

constexpr std::array kOwn{StackDefault{"runtime", "vramfit"}, StackDefault{"modeling", "vramfit"}};
constexpr std::array kTrainer{StackDefault{"runtime", "pytorch"}, StackDefault{"modeling", "transformers"}};

// fsdp=True, as accelerate 1.15 sets it up (utils/fsdp_utils.py: fsdp2_prepare_model).
constexpr std::array kTrainerFsdp2{StackDefault{"runtime", "pytorch-fsdp2"}, StackDefault{"modeling", "transformers"}};

// What accelerate sets up for a configuration with `fsdp_version: 1` (accelerator.py: prepare_model).
constexpr std::array kTrainerFsdp1{StackDefault{"runtime", "pytorch-fsdp1"}, StackDefault{"modeling", "transformers"}};

// SFTConfig of TRL 1.16, which differs from TrainingArguments in this and in bf16=True, the default of jobs, too.
constexpr std::array kSft{StackDefault{"runtime", "pytorch"}, StackDefault{"modeling", "trl"},
                          StackDefault{"checkpointing", "full"}};
constexpr std::array kSftFsdp2{StackDefault{"runtime", "pytorch-fsdp2"}, StackDefault{"modeling", "trl"},
                               StackDefault{"checkpointing", "full"}};
constexpr std::array kSftFsdp1{StackDefault{"runtime", "pytorch-fsdp1"}, StackDefault{"modeling", "trl"},
                               StackDefault{"checkpointing", "full"}};

// DPOConfig differs in the same.
constexpr std::array kDpo{StackDefault{"runtime", "pytorch"}, StackDefault{"modeling", "trl-dpo"},
                          StackDefault{"checkpointing", "full"}};
constexpr std::array kDpoFsdp2{StackDefault{"runtime", "pytorch-fsdp2"}, StackDefault{"modeling", "trl-dpo"},
                               StackDefault{"checkpointing", "full"}};

// So does RewardConfig.
constexpr std::array kReward{StackDefault{"runtime", "pytorch"}, StackDefault{"modeling", "trl-reward"},
                             StackDefault{"checkpointing", "full"}};
constexpr std::array kRewardFsdp2{StackDefault{"runtime", "pytorch-fsdp2"}, StackDefault{"modeling", "trl-reward"},
                                  StackDefault{"checkpointing", "full"}};

// So does GRPOConfig. A group of completions needs two, and has eight by default, as a batch has.
constexpr std::array kGrpo{StackDefault{"runtime", "pytorch"}, StackDefault{"modeling", "trl-grpo"},
                           StackDefault{"checkpointing", "full"}, StackDefault{"micro_batch", "8"}};
constexpr std::array kGrpoFsdp2{StackDefault{"runtime", "pytorch-fsdp2"}, StackDefault{"modeling", "trl-grpo"},
                                StackDefault{"checkpointing", "full"}, StackDefault{"micro_batch", "8"}};

// A loop of one's own has the optimizer that it makes: torch.optim.AdamW without more is its foreach form.
constexpr std::array kAccelerate{StackDefault{"runtime", "pytorch"}, StackDefault{"modeling", "accelerate"},
                                 StackDefault{"optimizer", "adamw:foreach"}};
constexpr std::array kAccelerateFsdp2{StackDefault{"runtime", "pytorch-fsdp2"}, StackDefault{"modeling", "accelerate"},
                                      StackDefault{"optimizer", "adamw:foreach"}};

// torchtitan 0.2.2, the release for torch 2.11: llama3/train_configs/llama3_8b.toml and run_train.sh, with embeddings
// and output as units.
constexpr std::array kTorchtitan{StackDefault{"runtime", "pytorch-fsdp2"},   StackDefault{"modeling", "torchtitan-0.2"},
                                 StackDefault{"precision", "bf16-mixed"},    StackDefault{"wrap_embeddings", "on"},
                                 StackDefault{"checkpointing", "selective"}, StackDefault{"allocator", "expandable"}};

// recipes/configs/llama3_1/8B_full.yaml and 8B_full_single_device.yaml of torchtune 0.6.1, whose embeddings and output
// are units.
constexpr std::array kTorchtune{StackDefault{"runtime", "pytorch"}, StackDefault{"modeling", "torchtune"},
                                StackDefault{"precision", "bf16-pure"}};
constexpr std::array kTorchtuneFsdp2{StackDefault{"runtime", "pytorch-fsdp2"}, StackDefault{"modeling", "torchtune"},
                                     StackDefault{"precision", "bf16-pure"}, StackDefault{"wrap_embeddings", "on"}};

constexpr std::array kDeepSpeed{StackDefault{"runtime", "deepspeed"}, StackDefault{"modeling", "transformers"}};
constexpr std::array kSftDeepSpeed{StackDefault{"runtime", "deepspeed"}, StackDefault{"modeling", "trl"},
                                   StackDefault{"checkpointing", "full"}};
constexpr std::array kDpoDeepSpeed{StackDefault{"runtime", "deepspeed"}, StackDefault{"modeling", "trl-dpo"},
                                   StackDefault{"checkpointing", "full"}};
constexpr std::array kRewardDeepSpeed{StackDefault{"runtime", "deepspeed"}, StackDefault{"modeling", "trl-reward"},
                                      StackDefault{"checkpointing", "full"}};
constexpr std::array kGrpoDeepSpeed{StackDefault{"runtime", "deepspeed"}, StackDefault{"modeling", "trl-grpo"},
                                    StackDefault{"checkpointing", "full"}, StackDefault{"micro_batch", "8"}};

constexpr std::array kStacks{
    Stack{"vramfit", "vramfit's own engine", kOwn, kOwn},
    Stack{"transformers", "transformers' Trainer", kTrainer, kTrainerFsdp2, kTrainerFsdp1},
    Stack{"trl", "TRL's SFTTrainer", kSft, kSftFsdp2, kSftFsdp1},
    Stack{"trl-deepspeed", "TRL's SFTTrainer with DeepSpeed", kSftDeepSpeed, kSftDeepSpeed},
    Stack{"trl-dpo", "TRL's DPOTrainer", kDpo, kDpoFsdp2},
    Stack{"trl-dpo-deepspeed", "TRL's DPOTrainer with DeepSpeed", kDpoDeepSpeed, kDpoDeepSpeed},
    Stack{"trl-reward", "TRL's RewardTrainer", kReward, kRewardFsdp2},
    Stack{"trl-reward-deepspeed", "TRL's RewardTrainer with DeepSpeed", kRewardDeepSpeed, kRewardDeepSpeed},
    Stack{"trl-grpo", "TRL's GRPOTrainer (training step without generation)", kGrpo, kGrpoFsdp2},
    Stack{"trl-grpo-deepspeed", "TRL's GRPOTrainer with DeepSpeed (training step without generation)", kGrpoDeepSpeed,
          kGrpoDeepSpeed},
    Stack{"accelerate", "a training loop with accelerate", kAccelerate, kAccelerateFsdp2},
    Stack{"deepspeed", "transformers' Trainer with DeepSpeed", kDeepSpeed, kDeepSpeed},
    Stack{"lightning", "Lightning's Trainer", {}, {}},
    Stack{"torchtune", "torchtune", kTorchtune, kTorchtuneFsdp2},
    Stack{"torchtitan", "torchtitan", {}, kTorchtitan},
};

}  // namespace

std::span<const Stack> stacks() { return kStacks; }

const Stack& stack_named(std::string_view name) {
  const auto* const stack = std::ranges::find(kStacks, name, &Stack::name);
  if (stack != kStacks.end()) return *stack;
  std::vector<std::string> names;
  for (const Stack& known : kStacks) names.emplace_back(known.name);
  const std::string nearest = nearest_name(name, names);
  throw InputError(fmt::format(
      "unknown value \"{}\"{} (known: {}; for axolotl and LLaMA-Factory give their configuration, --job FILE)",
      printable(name), nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest), fmt::join(names, ", ")));
}

namespace {

std::string_view name_of(Modeling modeling) {
  switch (modeling) {
    case Modeling::vramfit:
      break;
    case Modeling::torchtitan:
    case Modeling::torchtitan_02:
      return "torchtitan";
    case Modeling::transformers:
      return "transformers";
    case Modeling::trl:
      return "trl";
    case Modeling::trl_dpo:
      return "trl-dpo";
    case Modeling::trl_reward:
      return "trl-reward";
    case Modeling::trl_grpo:
      return "trl-grpo";
    case Modeling::accelerate:
      return "accelerate";
    case Modeling::torchtune:
      return "torchtune";
  }
  return "vramfit";
}

}  // namespace

const Stack& stack_of(const Job& job) {
  if (job.runtime == Runtime::deepspeed && !has_trainer(job)) return stack_named("deepspeed");
  const Stack& stack = stack_named(name_of(job.modeling));
  return job.runtime == Runtime::deepspeed ? with_deepspeed(stack) : stack;
}

const Stack& with_deepspeed(const Stack& stack) {
  if (stack.name == "transformers") return stack_named("deepspeed");
  const std::string name = fmt::format("{}-deepspeed", stack.name);
  const auto* const found = std::ranges::find(kStacks, name, &Stack::name);
  return found != kStacks.end() ? *found : stack;
}

std::string_view name_with_deepspeed(const Job& job) {
  return has_trainer(job) ? with_deepspeed(stack_of(job)).name : "deepspeed";
}

std::span<const StackDefault> defaults_of(const Stack& stack, const Cluster& cluster, bool is_copied) {
  return cluster.cards() == 1 || (is_copied && !stack.one_gpu.empty()) ? stack.one_gpu : stack.several_gpus;
}

Job on_stack(Job job, std::span<const StackDefault> defaults) {
  for (const StackDefault& each : defaults) job_field_named(each.field).set(job, each.value);
  return job;
}

Precision precision_on(const Job& job, std::string_view name) {
  Precision precision = precision_named(name);
  const bool is_accelerate = is_fsdp(job.runtime) && uses_accelerate(job);
  if (is_accelerate || job.runtime == Runtime::deepspeed) precision.reduce = precision.compute;
  // sft_trainer.py: __init__ converts adapters over 4 bits. DeepSpeed's partitions are fp32 all the same, and
  // accelerate makes FSDP1's flat parameters fp32.
  const bool widens = job.runtime == Runtime::deepspeed || job.runtime == Runtime::pytorch_fsdp1;
  const bool converts = has_trl(job) && !widens;
  if (converts && job.method == Method::qlora) precision.storage = precision.state = Dtype::bf16;
  return precision;
}

std::string defaults_text(std::span<const StackDefault> defaults) {
  std::string text;
  for (const StackDefault& each : defaults) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", flag_of(job_field_named(each.field)), each.value);
  }
  return text;
}

}  // namespace vramfit
