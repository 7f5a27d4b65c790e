#include "cli/estimate/asked.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/configs/job_configs.h"
#include "cli/flags/calibration_files.h"
#include "estimator/changes/void_choices.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/run/rehearsal_command.h"
#include "job/stacks/job_defaults.h"
#include "job/stacks/sharded_instead.h"
#include "program/not_modelled.h"

namespace vramfit {
namespace {

Cluster cluster_of(const JobQuestion& question) {
  Cluster cluster = read_cluster_flag(question.job);
  if (!question.network.empty()) {
    set_network(cluster, question.network);
  } else {
    keep_network(question.job, cluster);
  }
  return cluster;
}

/// What the stack sets where it has rules; empty where it has none.
std::span<const StackDefault> rules_of(const Asked& asked) {
  return job_defaults(*asked.stack, asked.choice.job, asked.cluster);
}

/// The estimate of a job that has no rules there, for the reason `why`.
Estimate without_rules(const JobQuestion& question, const Asked& asked, const ModelSpec& spec, const std::string& why,
                       const std::string& answered_by) {
  Estimate result =
      estimate_without_rules(spec, asked.choice.job, asked.cluster, std::string(asked.stack->name), why, answered_by);
  result.run = effects_of(question);
  result.own_rehearsal = own_rehearsal(question.job, asked.cluster);
  return result;
}

/// Sharding is suggested in place of DDP by the flag that asked for DDP (--sharding or --runtime), and not at all where
/// something else that was set has no rules with FSDP2.
void name_sharded(std::vector<Suggestion>& suggestions, const JobChoice& choice, const ModelSpec& spec,
                  const Cluster& cluster) {
  const std::optional<Job> sharded = sharded_instead(choice.job, cluster, choice.fixed);
  if (!sharded) return;
  const bool is_by_sharding = std::ranges::find(choice.fixed, "sharding") != choice.fixed.end();
  std::string flags = "--sharding full-shard";
  const auto by_sharding = std::ranges::find(suggestions, flags, &Suggestion::change);
  if (by_sharding == suggestions.end()) return;
  try {
    std::vector<std::string> notes;
    require_rules(resolve_job(*sharded, spec, cluster, notes), cluster);
  } catch (const Error&) {
    suggestions.erase(by_sharding);
    return;
  }
  const JobField& runtime = job_field_named("runtime");
  if (!is_by_sharding) by_sharding->change = fmt::format("{} {}", flag_of(runtime), runtime.get(*sharded));
}

}  // namespace

void keep_network(const JobFlags& flags, Cluster& cluster) {
  if (flags.network_bandwidth <= 0 || cluster.nodes == 1) return;
  cluster.network_bandwidth = flags.network_bandwidth;
  cluster.network_origin.clear();  // it is a file's
}

RunEffects effects_of(const JobQuestion& question) {
  RunEffectFlags flags = question.run;
  if (flags.save_kind.empty()) flags.save_kind = question.job.save_kind;
  RunEffects effects = effects_of(flags);
  effects.clip = effects.clip && question.job.clips;
  return effects;
}

Asked read_asked(const JobQuestion& question) {
  Asked asked{.stack = stack_of_flag(question.job), .choice = {}, .cluster = cluster_of(question)};
  asked.choice = asked.stack == nullptr ? read_job_choice(question.job)
                                        : read_job_choice(question.job, *asked.stack, asked.cluster);
  if (asked.stack == nullptr) asked.stack = &stack_of(asked.choice.job);
  if (asked.choice.job.runtime == Runtime::deepspeed) asked.stack = &with_deepspeed(*asked.stack);
  // A rehearsed library brings its own PyTorch, which may have kernels for cards that the engine's has none for.
  if (!question.job.stack.empty() && rules_of(asked).empty()) asked.choice.job.runtime = Runtime::pytorch;
  return asked;
}

StackRecipe recipe_of(const Asked& asked, const ModelSpec& spec) {
  std::vector<std::string> notes;
  StackRecipe recipe =
      recipe_of(*asked.stack, resolve_job(asked.choice.job, spec, asked.cluster, notes), asked.choice.fixed);
  const bool has_builder =  // configs/recipes/torchtune.py: FAMILIES; that of Mistral ties nothing
      spec.model_type == "llama" || spec.model_type == "qwen2" ||
      (spec.model_type == "mistral" && !spec.tie_word_embeddings);
  if (recipe.recipe == "torchtune" && !has_builder) {
    throw NotModelled(fmt::format("{} with torchtune's recipes (those of Llama, Mistral and Qwen2)", spec.model_type));
  }
  if (asked.cluster.cards() > 1 && !find_recipe(recipe.recipe).several) {
    throw NotModelled(
        fmt::format("--stack {} on several GPUs (recipe {} is for one)", asked.stack->name, recipe.recipe));
  }
  return recipe;
}

std::string own_rehearsal(const JobFlags& flags, const Cluster& cluster) {
  if (flags.program.all.empty() || cluster.is_cpu()) return "";
  return printable(rehearsal_of(cluster, flags.program), 500);
}

std::string recipe_command(const Asked& asked, const ModelSpec& spec, const std::string& model) {
  try {
    return command_of(recipe_of(asked, spec), model, asked.cluster);
  } catch (const NotModelled&) {
    return "";
  }
}

std::string trainer_command(const Asked& asked, const ModelSpec& spec, const std::string& model) {
  const bool is_engine = asked.stack->name == "vramfit" && asked.choice.job.runtime != Runtime::pytorch_fsdp1;
  if (!is_engine || asked.cluster.is_cpu()) return "";
  Asked trainer = asked;
  trainer.stack = &stack_named("transformers");
  trainer.choice.job.runtime = Runtime::pytorch;
  return recipe_command(trainer, spec, model);
}

Estimate estimate_of(const JobQuestion& question, const Asked& asked, const ModelSpec& spec, bool suggestions) {
  const std::string own = own_rehearsal(question.job, asked.cluster);
  if (!question.job.unmodelled.empty()) {
    return without_rules(question, asked, spec, unmodelled_text(question.job), own);
  }
  const bool is_of_recipe = own.empty() && !saves_anything(effects_of(question));  // recipes save nothing
  const std::string answered_by = is_of_recipe ? recipe_command(asked, spec, question.job.model) : own;
  const std::span<const StackDefault> defaults = rules_of(asked);
  if (!question.job.stack.empty() && defaults.empty()) {
    return without_rules(question, asked, spec, without_rules_text(*asked.stack, asked.cluster), answered_by);
  }
  const Efficiency efficiency = efficiency_by(question.calibration, asked.cluster, spec);
  Estimate result = estimate(
      spec, asked.choice.job, asked.cluster,
      {.suggestions = suggestions, .run = effects_of(question), .speed_with = &efficiency, .answered_by = answered_by});
  result.own_rehearsal = own;
  if (result.verdict == Verdict::not_modelled && own.empty()) {
    const std::string trainer = trainer_command(asked, spec, question.job.model);
    if (!trainer.empty()) result.why += "; transformers' Trainer answers it: " + trainer;
  }
  name_sharded(result.suggestions, asked.choice, spec, asked.cluster);
  if (!result.ranks.empty()) {
    const std::vector<std::string> unused =
        void_choices(spec, result.job, asked.choice.fixed, asked.cluster, effects_of(question));
    result.assumptions.insert(result.assumptions.begin(), unused.begin(), unused.end());
  }
  if (!question.job.stack.empty()) {
    result.assumptions.insert(result.assumptions.begin(),
                              fmt::format("--stack {} is {}", asked.stack->name, defaults_text(defaults)));
  }
  return result;
}

}  // namespace vramfit
