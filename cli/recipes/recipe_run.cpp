#include "cli/recipes/recipe_run.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/numbers/mix_bits.h"
#include "base/text/suggest.h"
#include "cli/fake_weights/checkpoint.h"
#include "cli/flags/help.h"
#include "cli/flags/model.h"
#include "cli/recipes/libraries.h"

namespace vramfit {
namespace {

struct ChoiceFlag {
  const char *flag, *type, *meaning;
};
constexpr std::array kFlags{
    ChoiceFlag{"seq-len", "N", "Sequence length in tokens"},
    ChoiceFlag{"micro-batch", "N",
               "Sequences per micro-batch on each GPU; for trl-dpo and trl-reward, pairs of sequences"},
    ChoiceFlag{"grad-accum", "N", "Gradient accumulation steps: micro-batches per optimizer step"},
    ChoiceFlag{"precision", "NAME", "fp32, bf16-mixed, bf16-pure or fp16-mixed"},
    ChoiceFlag{"gradient-checkpointing", "on|off", "Keep only each layer's input, and recompute the layer in backward"},
    ChoiceFlag{"optimizer", "NAME",
               "Optimizer, named as in the library: adamw_torch_fused, paged_adamw_8bit, AdamW, ..."},
    ChoiceFlag{"offload", "WHAT", "What is kept in host memory: none, optimizer (its states) or params (weights too)"},
    ChoiceFlag{"sharding", "NAME", "no-shard, shard-optimizer (ZeRO-1), shard-grad-op (ZeRO-2) or full-shard (ZeRO-3)"},
    ChoiceFlag{"overlap-comm", "default|on|off", "DeepSpeed: reduce gradients on a separate stream"},
    ChoiceFlag{"kernels", "default|liger|liger:PART=on,...",
               "Trainers: liger is Liger Kernel, as \"vramfit estimate\" takes it"},
    ChoiceFlag{"zero3-sizes", "NAME=N,...", "Sizes of DeepSpeed's ZeRO-3, as \"vramfit estimate\" takes them, or auto"},
    ChoiceFlag{"steps", "N", "Optimizer steps to rehearse"},
    ChoiceFlag{"lora-rank", "N", "Rank of the LoRA adapters; 0 trains the whole model, if the recipe can"},
    ChoiceFlag{"optimizer-in-backward", "on|off", "torchtune: update weights within backward (optimizer_in_bwd)"},
    ChoiceFlag{"rotary-positions", "N",
               "torchtune: max_seq_len, for which the model's builder makes its tables; 0: the same as --seq-len"},
};

std::int64_t launched_processes(const Recipe& recipe, const Cluster& cluster, std::optional<std::int64_t> played_rank) {
  if (cluster.cards() > 1 && !recipe.several) {
    throw InputError(fmt::format("--gpus {}: recipe {} is for one GPU", cluster.text, recipe.name));
  }
  const bool is_launched = !played_rank && (cluster.cards() > 1 || !recipe.alone);
  return is_launched ? cluster.cards() : 0;
}

std::string choices_text(const RecipeValues& values) {
  std::string text;
  for (const auto& [flag, value] : values) {
    text += fmt::format("{}--{} {}", text.empty() ? "" : " ", flag, printable(value, 80));
  }
  return text;
}

}  // namespace

void add_recipe_flags(CLI::App& command, RecipeFlags& flags) {
  std::string names;
  for (const RecipeSource& source : recipe_sources())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", source.name);
  command
      .add_option("--recipe", flags.name,
                  "Write a script that trains MODEL with a library, on weights that take no disk space, and rehearse "
                  "it. NAME is " +
                      names)
      ->type_name("NAME")
      ->group(kRecipeFlags);
  command.add_option("--python", flags.python, "The Python that has the library. Default: python in PATH")
      ->type_name("PATH")
      ->group(kRecipeFlags);
  for (const ChoiceFlag& flag : kFlags) {
    command.add_option(fmt::format("--{}", flag.flag), flags.values[flag.flag], flag.meaning)
        ->type_name(flag.type)
        ->group(kRecipeFlags);
  }
}

RecipeValues given_values(const RecipeFlags& flags) {
  RecipeValues given;
  for (const auto& [flag, value] : flags.values) {
    if (!value.empty()) given[flag] = value;
  }
  if (flags.name.empty() && (!given.empty() || !flags.python.empty())) {
    throw InputError(fmt::format("--{}: is a choice of a recipe, and --recipe NAME is missing",
                                 given.empty() ? "python" : given.begin()->first));
  }
  return given;
}

RecipeRun::RecipeRun(const RecipeFlags& flags, const Cluster& cluster, std::optional<std::int64_t> played_rank,
                     const std::string& keep)
    : recipe_(find_recipe(flags.name)),
      values_(recipe_values(recipe_, given_values(flags))),
      launched_(launched_processes(recipe_, cluster, played_rank)),
      is_kept_(!keep.empty()) {
  const bool has_search = std::ranges::any_of(values_, [](const auto& each) { return each.second.starts_with('{'); });
  if (!has_search) recipe_script(recipe_, values_, "");  // refuses values
  const ModelSpec spec = read_model(flags.model);
  python_ = find_python(flags.python);
  const Libraries libraries = check_libraries(recipe_, python_);
  libraries_ = fmt::format("libraries of {}: {}", printable(python_), libraries.text);
  installed_ = libraries.identity;
  notes_ = {fmt::format("recipe {}: {}", recipe_.name, recipe_.summary), "choices: " + choices_text(values_),
            libraries_};
  folder_ = std::make_unique<SessionFolder>(keep);
  model_identity_ = config_text(spec, Dtype::bf16);
  write_checkpoint(spec, Dtype::bf16, folder_->path() + "/model", true);
  if (is_kept_) notes_.push_back(fmt::format("--keep: {}/train.py is the script", printable(folder_->path())));
}

RecipeValues RecipeRun::values_at(const SearchPoint& point) const {
  RecipeValues values;
  for (const auto& [flag, value] : values_) values[flag] = with_values({value}, point)[0];
  return values;
}

std::vector<std::string> RecipeRun::words(const std::string& script) const {
  if (launched_ == 0) return {python_, script};
  return {python_, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", fmt::to_string(launched_),
          script};
}

std::vector<std::string> RecipeRun::command(const SearchPoint& point) const {
  // Rehearsals of a search run at the same time, so each has a script of its own.
  const std::string mark = point.empty() ? "" : fmt::format("-{:016x}", fnv1a(point_text(point)));
  const std::string script = fmt::format("{}/train{}.py", folder_->path(), mark);
  write_file(script, recipe_script(recipe_, values_at(point), folder_->path() + "/model"));
  return words(script);
}

std::vector<std::string> RecipeRun::identity(const SearchPoint& point) const {
  std::vector<std::string> identity = words(recipe_script(recipe_, values_at(point), "model"));
  identity.insert(identity.end(), {libraries_, installed_, model_identity_});
  return identity;
}

std::string RecipeRun::kept_session() const { return is_kept_ ? folder_->path() + "/session" : ""; }

}  // namespace vramfit
