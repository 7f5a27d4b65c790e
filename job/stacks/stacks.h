// The libraries that people train with, by name: what `--stack` sets. A stack is a runtime, a modeling, and the
// defaults of other fields that its library has.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

struct StackDefault {
  std::string_view field, value;
};

struct Stack {
  std::string_view name;  // "transformers"
  std::string_view what;  // "transformers' Trainer", as verdicts say it
  /// On one GPU, which with copies is also on several, and on several with parts. Empty: there are no rules for it
  /// there, and a rehearsal has to answer.
  std::span<const StackDefault> one_gpu, several_gpus;
  /// On several with FSDP1, which --runtime asks for.
  std::span<const StackDefault> with_fsdp1 = {};
};

/// In the order of the help, this project's own first.
std::span<const Stack> stacks();

/// Throws InputError with a suggestion.
const Stack& stack_named(std::string_view name);

/// The stack that a job is of, by its modeling and whether its runtime is DeepSpeed.
const Stack& stack_of(const Job& job);

/// The stack of the same Trainer with DeepSpeed, for --runtime deepspeed; `stack` itself where there is none.
const Stack& with_deepspeed(const Stack& stack);

/// The stack of the job's Trainer with DeepSpeed; of one without, transformers' Trainer's.
std::string_view name_with_deepspeed(const Job& job);

/// The defaults on this cluster, with a copy of the model on each of several GPUs (DDP) or a part of it; empty where
/// there are no rules.
std::span<const StackDefault> defaults_of(const Stack& stack, const Cluster& cluster, bool is_copied = false);

/// `job` with the defaults set.
Job on_stack(Job job, std::span<const StackDefault> defaults);

/// The precision called `name` as the job's library has it: accelerate's FSDP2 and DeepSpeed reduce in the dtype they
/// compute in. Throws InputError for a name that isn't known.
Precision precision_on(const Job& job, std::string_view name);

/// "--runtime pytorch --modeling transformers".
std::string defaults_text(std::span<const StackDefault> defaults);

}  // namespace vramfit
