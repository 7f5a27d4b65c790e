#include "cli/recipes/stack_recipe.h"

#include <algorithm>
#include <array>
#include <variant>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/shell_quoted.h"
#include "base/text/suggest.h"
#include "job/fields/job_fields.h"
#include "job/stacks/stacks.h"

namespace vramfit {
namespace {

/// "" where there is none for a method.
struct Recipes {
  std::string_view stack, full, lora, qlora;
  std::string_view copied = {};  // of all weights that are whole on each GPU, where `full` shards them
};
constexpr std::array kRecipes{
    Recipes{"transformers", "trainer", "peft-lora", "peft-qlora"},
    Recipes{"trl", "trl-sft", "trl-sft", ""},
    Recipes{"trl-deepspeed", "trl-deepspeed", "trl-deepspeed", ""},
    Recipes{"trl-dpo", "trl-dpo", "trl-dpo", ""},
    Recipes{"trl-dpo-deepspeed", "trl-dpo-deepspeed", "trl-dpo-deepspeed", ""},
    Recipes{"trl-reward", "trl-reward", "trl-reward", ""},
    Recipes{"trl-reward-deepspeed", "trl-reward-deepspeed", "trl-reward-deepspeed", ""},
    Recipes{"trl-grpo", "trl-grpo", "trl-grpo", ""},
    Recipes{"trl-grpo-deepspeed", "trl-grpo-deepspeed", "trl-grpo-deepspeed", ""},
    Recipes{"accelerate", "accelerate-fsdp2", "", "", "accelerate-ddp"},
    Recipes{"deepspeed", "deepspeed-zero3", "", ""},
    Recipes{"lightning", "lightning", "", ""},
    Recipes{"torchtune", "torchtune", "torchtune", ""},
};

// Fields whose value is in a recipe, or that say nothing beyond what its choices say.
constexpr std::array<std::string_view, 22> kSaid{
    "runtime",      "modeling",     "method",       "precision",       "storage_dtype", "state_dtype",
    "mesh",         "seq_len",      "micro_batch",  "grad_accum",      "global_batch",  "checkpointing",
    "optimizer",    "allocator",    "lora_rank",    "lora_alpha",      "rslora",        "quantization",
    "frozen_dtype", "lora_targets", "lora_dropout", "rotary_positions"};

// Fields whose values a recipe has under the same names, if it has a choice of them.
constexpr std::array<std::string_view, 6> kAsTheyAre{
    "offload", "sharding", "overlap_comm", "zero3_sizes", "optimizer_in_backward", "kernels"};

std::string choice_name(std::string_view field) {
  std::string name(field);
  std::ranges::replace(name, '_', '-');
  return name;
}

[[noreturn]] void refuse(std::string_view recipe, const Job& job, std::string_view field, std::string_view why = "") {
  const JobField& row = job_field_named(field);
  throw NotModelled(fmt::format("{} {} in a rehearsal of recipe {}{}", flag_of(row), row.get(job), recipe, why));
}

class Mapping {
 public:
  Mapping(const Recipe& recipe, const Job& job, const std::vector<std::string>& fixed)
      : recipe_(recipe), job_(job), fixed_(fixed) {}

  RecipeValues values() {
    set("seq-len", fmt::to_string(job_.sequence));
    set("micro-batch", fmt::to_string(job_.micro_batch));
    set("grad-accum", fmt::to_string(job_.accumulation));
    for (const std::string& field : fixed_) require_choice(field);
    if (is_own_loop() || is_torchtune()) require_dtypes();
    if (is_torchtune()) require_torchtune();
    if (job_.runtime == Runtime::deepspeed && !job_.offload.empty()) require_offload_of_deepspeed();
    if (is_fixed("precision") || is_fixed("storage_dtype") || has_no_bf16()) set("precision", precision());
    if (is_fixed("checkpointing")) set("gradient-checkpointing", checkpointing());
    if (is_fixed("optimizer")) set("optimizer", optimizer());
    for (const std::string_view field : kAsTheyAre) set_as_it_is(field);
    set_sharding_of_peft();
    set_adapters();
    if (is_torchtune() && job_.rotary_positions > 0) set("rotary-positions", fmt::to_string(job_.rotary_positions));
    return std::move(values_);
  }

 private:
  /// That the recipe can say it, or that it is what happens where nothing is said.
  void require_choice(std::string_view field) const {
    const JobField& row = job_field_named(field);
    const bool is_as_it_is =
        std::ranges::find(kAsTheyAre, field) != kAsTheyAre.end() && choice(choice_name(field)) != nullptr;
    const bool is_said = std::ranges::find(kSaid, field) != kSaid.end() || is_as_it_is ||
                         (field == "sharding" && is_of_copies() && job_.sharding == "no-shard") ||
                         (field == "loss" && is_torchtune() && row.get(job_) == "chunked:8") ||
                         (field == "wrap_embeddings" && job_.mesh.shard == 1);  // nothing is wrapped
    const bool is_foreign = field == "rotary_positions" && !is_torchtune() && job_.rotary_positions > 0;
    if (is_foreign) refuse(recipe_.name, job_, field, " (torchtune has them; leave it out)");
    if (!is_said && row.get(job_) != row.get(unresolved_job())) refuse(recipe_.name, job_, field);
  }
  void set_as_it_is(std::string_view field) {
    if (is_fixed(field) && choice(choice_name(field)) != nullptr) put(field);
  }
  void put(std::string_view field) {
    const RecipeChoice* const known = choice(choice_name(field));
    std::string value = job_field_named(field).get(job_);
    if (field == "kernels" && job_.axolotl.any()) refuse(recipe_.name, job_, field);
    const bool is_list = value.find('=') != std::string::npos;  // which recipe_script checks
    if (value.empty()) value = "default";
    if (!is_list && std::ranges::find(known->values, value) == known->values.end()) refuse(recipe_.name, job_, field);
    set(choice_name(field), std::move(value));
  }
  /// PEFT's recipes have copies unless they are told that weights are sharded, which is what an estimate means by
  /// several GPUs; bitsandbytes' optimizers, which they take by default, update no shards.
  void set_sharding_of_peft() {
    if (job_.method == Method::full || choice("sharding") == nullptr || job_.mesh.shard == 1) return;
    put("sharding");
    set("optimizer", optimizer());
  }
  bool is_of_copies() const { return std::ranges::find(kRecipes, recipe_.name, &Recipes::copied) != kRecipes.end(); }
  bool is_own_loop() const { return job_.modeling == Modeling::accelerate; }
  bool is_torchtune() const { return recipe_.name == "torchtune"; }
  /// One dtype throughout, and FSDP2 on several GPUs.
  void require_torchtune() const {
    const bool is_of_one = job_.precision.name == "bf16-pure" || job_.precision.name == "fp32";
    if (!is_of_one) refuse(recipe_.name, job_, "precision", " (--precision bf16-pure is)");
    if (job_.mesh.replicate > 1) refuse(recipe_.name, job_, "sharding");
  }
  /// Loops of one's own load weights in the precision's dtype, and torch's AdamW has states of theirs.
  void require_dtypes() const {
    const Precision usual = precision_on(job_, job_.precision.name);
    if (job_.precision.storage != usual.storage) refuse(recipe_.name, job_, "storage_dtype");
    if (job_.precision.state != usual.state) refuse(recipe_.name, job_, "state_dtype");
  }
  /// ZeRO-3 alone parts parameters, and with offload DeepSpeed's own AdamW updates.
  void require_offload_of_deepspeed() const {
    const bool has_parameters =
        std::ranges::any_of(job_.offload, [](const std::string& offloaded) { return offloaded.starts_with("params"); });
    if (has_parameters && job_.sharding != "full-shard") refuse(recipe_.name, job_, "offload");
    const bool is_paged = job_.optimizer_implementation == OptimizerImplementation::paged;
    if (job_.optimizer != "adamw" || is_paged)
      refuse(recipe_.name, job_, "optimizer", " with --offload (adamw:fused is)");
  }
  bool is_fixed(std::string_view field) const { return std::ranges::find(fixed_, field) != fixed_.end(); }
  void set(const std::string& flag, std::string value) { values_[flag] = std::move(value); }
  const RecipeChoice* choice(std::string_view flag) const {
    const auto found = std::ranges::find(recipe_.choices, flag, &RecipeChoice::flag);
    return found == recipe_.choices.end() ? nullptr : &*found;
  }

  /// fp16-mixed is the default where the card has no bf16 units; recipes that know it would take bf16 there, too.
  bool has_no_bf16() const {
    const RecipeChoice* const known = choice("precision");
    return job_.precision.name == "fp16-mixed" && known != nullptr &&
           std::ranges::find(known->values, job_.precision.name) != known->values.end();
  }

  /// The recipes' bf16-pure is weights in bf16, under autocast where their library has bf16=True.
  std::string precision() const {
    if (job_.precision.storage == Dtype::f16) refuse(recipe_.name, job_, "storage_dtype");
    const bool is_wide = job_.precision.storage == Dtype::f32;
    const std::string name = job_.precision.name == "bf16-mixed" && !is_wide ? "bf16-pure" : job_.precision.name;
    const bool is_autocast = std::ranges::find(kAutocast, recipe_.name) != kAutocast.end();
    if (is_autocast && job_.precision.name == "bf16-pure") {
      refuse(recipe_.name, job_, "precision",
             ", which has autocast for weights in bf16, too: --precision bf16-mixed --storage-dtype bf16 --state-dtype "
             "bf16");
    }
    const RecipeChoice* const known = choice("precision");
    if (known == nullptr || std::ranges::find(known->values, name) == known->values.end()) {
      refuse(recipe_.name, job_, "precision");
    }
    return name;
  }

  std::string checkpointing() const {
    if (std::holds_alternative<NoCheckpointing>(job_.checkpointing)) return "off";
    if (std::holds_alternative<FullCheckpointing>(job_.checkpointing)) return "on";
    refuse(recipe_.name, job_, "checkpointing");
  }

  /// As transformers names it, or as its class is called where the recipe lists classes.
  std::string optimizer() const {
    struct Name {
      std::string_view ours, of_transformers, of_classes;
    };
    constexpr std::array kNames{Name{"adamw:fused", "adamw_torch_fused", "AdamW"},
                                Name{"adamw:foreach", "adamw_torch", "AdamW"},
                                Name{"adamw:paged", "paged_adamw_32bit", "PagedAdamW"},
                                Name{"adamw-8bit:fused", "adamw_bnb_8bit", "AdamW8bit"},
                                Name{"adamw-8bit:paged", "paged_adamw_8bit", "PagedAdamW8bit"},
                                Name{"adamw-8bit:torchao", "adamw_torch_8bit", ""},
                                Name{"adamw-4bit:torchao", "adamw_torch_4bit", ""},
                                Name{"adafactor:fused", "adafactor", ""},
                                Name{"sgd:fused", "sgd", "SGD"}};
    const std::string ours = job_field_named("optimizer").get(job_);
    if (ours == "adamw:deepspeed" && job_.runtime == Runtime::deepspeed) return "deepspeed";
    const auto* const found = std::ranges::find(kNames, ours, &Name::ours);
    const std::vector<std::string>& listed = choice("optimizer")->values;
    const auto lists = [&](std::string_view name) { return std::ranges::find(listed, name) != listed.end(); };
    if (ours == "adamw:fused" && lists("AdamW:fused")) return "AdamW:fused";
    const std::string_view name = found == kNames.end() ? ""
                                  : !listed.empty()     ? found->of_classes
                                                        : found->of_transformers;
    const bool is_known = listed.empty() || lists(name);
    if (ours == "adamw:deepspeed") refuse(recipe_.name, job_, "optimizer", " (--stack deepspeed has it)");
    if (name.empty() || !is_known) refuse(recipe_.name, job_, "optimizer");
    return std::string(name);
  }

  /// On all linears, without dropout, as the recipes have them.
  void set_adapters() {
    const std::string_view usual = job_.method == Method::qlora ? "nf4-double" : "none";
    if (job_.quantization != usual) refuse(recipe_.name, job_, "quantization");
    if (job_.method == Method::full) return;
    if (!job_.lora.targets.empty()) refuse(recipe_.name, job_, "lora_targets");
    if (job_.lora.dropout != 0) refuse(recipe_.name, job_, "lora_dropout");
    set("lora-rank", fmt::to_string(job_.lora.rank));
  }

  static constexpr std::array<std::string_view, 7> kAutocast{"trainer",  "trl-sft",   "trl-dpo",   "trl-reward",
                                                             "trl-grpo", "peft-lora", "peft-qlora"};

  const Recipe& recipe_;
  const Job& job_;
  const std::vector<std::string>& fixed_;
  RecipeValues values_;
};

std::string recipe_name(const Stack& stack, const Job& job) {
  const Method method = job.method;
  const auto* const row = std::ranges::find(kRecipes, stack.name, &Recipes::stack);
  if (row == kRecipes.end()) return "";
  if (method == Method::full && !row->copied.empty() && job.mesh.shard == 1) return std::string(row->copied);
  return std::string(method == Method::full ? row->full : method == Method::lora ? row->lora : row->qlora);
}

std::string allocator_setting(std::string_view recipe, const Job& job) {
  if (job.allocator == "native") return "";
  if (job.allocator != "expandable") refuse(recipe, job, "allocator");
  return "expandable_segments:True";
}

}  // namespace

StackRecipe recipe_of(const Stack& stack, const Job& job, const std::vector<std::string>& fixed) {
  if (job.runtime == Runtime::pytorch_fsdp1) {
    throw NotModelled(
        "--runtime pytorch-fsdp1 in a rehearsal of a recipe, which has FSDP2 (your own script answers: vramfit "
        "rehearse --gpus CLUSTER -- CMD)");
  }
  const std::string name = recipe_name(stack, job);
  if (name.empty()) {
    throw NotModelled(
        fmt::format("--stack {} with --method {} in a rehearsal of a recipe, of which there is none for it (your own "
                    "script answers: "
                    "vramfit rehearse --gpus CLUSTER -- CMD)",
                    stack.name, job_field_named("method").get(job)));
  }
  const Recipe recipe = find_recipe(name);
  StackRecipe result{.recipe = name, .values = Mapping(recipe, job, fixed).values(), .allocator = {}};
  const bool is_set = std::ranges::find(fixed, "allocator") != fixed.end();
  if (is_set) result.allocator = allocator_setting(name, job);
  recipe_script(recipe, recipe_values(recipe, result.values), "");  // refuses values
  return result;
}

std::string command_of(const StackRecipe& recipe, const std::string& model, const Cluster& cluster) {
  std::string text = recipe.allocator.empty() ? "" : fmt::format("PYTORCH_CUDA_ALLOC_CONF={} ", recipe.allocator);
  text += fmt::format("vramfit rehearse --recipe {} {} --gpus {}", recipe.recipe, shell_quoted(printable(model)),
                      cluster.text);
  if (cluster.cards() > 1) text += " --ranks 0";
  for (const auto& [flag, value] : recipe.values) text += fmt::format(" --{} {}", flag, shell_quoted(value));
  return text;
}

}  // namespace vramfit
