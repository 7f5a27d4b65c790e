#include "cli/recipes/recipe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/files.h"
#include "cli/recipes/recipe_run.h"
#include "cli/recipes/stack_recipe.h"
#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "tests/support/paths.h"

namespace vramfit {
namespace {

constexpr RecipeSource kSource{"mine", R"(# recipe: what it does
# libraries: torch>=2.6 mine
# launch: python torchrun
MODEL = "model"  # --model
SEQ_LEN = 1024  # --seq-len
LORA_RANK = 0  # --lora-rank
PRECISION = "fp32"  # --precision fp32|bf16-mixed
OPTIMIZER = "adamw"  # --optimizer
print(MODEL)
)"};

std::string script_with(const RecipeValues& given) {
  const Recipe recipe = parse_recipe(kSource);
  return recipe_script(recipe, recipe_values(recipe, given), "a \"folder\"");
}

TEST_CASE("values go into a recipe's script where its flags are named") {
  const std::string script =
      script_with({{"seq-len", "8"}, {"precision", "bf16-mixed"}, {"optimizer", "torch.optim.SGD"}});
  CHECK(script.ends_with(R"(MODEL = "a \"folder\""  # --model
SEQ_LEN = 8  # --seq-len
LORA_RANK = 0  # --lora-rank
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed
OPTIMIZER = "torch.optim.SGD"  # --optimizer
print(MODEL)
)"));
}

TEST_CASE("a choice that a recipe hasn't, or a value that it can't take, is refused by name") {
  const auto refused = [](const RecipeValues& given, const char* why) {
    CHECK_THROWS_WITH_AS(script_with(given), doctest::Contains(why), InputError);
  };
  refused({{"steps", "2"}}, "--steps: recipe mine has no such choice; it has --seq-len, --lora-rank");
  refused({{"seq-len", "0"}}, "--seq-len 0: ");
  refused({{"seq-len", "1e3"}}, "--seq-len 1e3: ");
  refused({{"seq-len", "99999999999999999999"}}, "--seq-len 9999");
  refused({{"lora-rank", "-1"}}, "--lora-rank -1: ");
  refused({{"precision", "bf16"}}, "--precision bf16: unknown value \"bf16\"");
  refused({{"optimizer", "\"\nimport os #"}}, "expected a name");
  refused({{"optimizer", std::string(100, 'a')}}, "expected a name");
}

TEST_CASE("a recipe file without its first lines, or with a value of its own that it can't take, is refused") {
  const auto refused = [](std::string_view text, const char* why) {
    CHECK_THROWS_WITH_AS(parse_recipe({"mine", text}), doctest::Contains(why), FaultError);
  };
  refused("", "recipe mine, line 1: expected \"# recipe: \"");
  refused("# recipe: a\n# libraries: b\n", "line 3: expected \"# launch: \"");
  refused("# recipe: a\n# libraries: b\n# launch: mpirun\n", "expected python or torchrun");
  refused("# recipe: a\n# libraries: b\n# launch: python\nN = many  # --steps\n", "recipe mine: --steps: ");
}

TEST_CASE("the recipes are those of configs/recipes, and each has a model, a length and a number of steps") {
  CHECK(recipe_sources().size() >= 9);
  for (const RecipeSource& source : recipe_sources()) {
    CAPTURE(source.name);
    std::string file(source.name);
    std::ranges::replace(file, '-', '_');
    CHECK(source.text == read_file(testing::source_dir() + "/configs/recipes/" + file + ".py"));
    const Recipe recipe = find_recipe(std::string(source.name));
    CHECK((recipe.alone || recipe.several));
    const bool offers_sgd = source.text.find("|SGD") != std::string_view::npos;
    CHECK((!offers_sgd || source.text.find("{\"momentum\": 0.9}") != std::string_view::npos));  // as estimates have it
    CHECK(source.text.find("\nMODEL = \"model\"  # --model\n") != std::string_view::npos);
    for (const char* flag : {"seq-len", "micro-batch", "steps"}) {
      CHECK(std::ranges::find(recipe.choices, flag, &RecipeChoice::flag) != recipe.choices.end());
    }
  }
  CHECK_THROWS_WITH_AS(find_recipe("trl-stf"), doctest::Contains("did you mean \"trl-sft\""), InputError);
}

TEST_CASE("each choice of a recipe is a flag of a rehearsal") {
  CLI::App app;
  RecipeFlags flags;
  add_recipe_flags(app, flags);
  for (const RecipeSource& source : recipe_sources()) {
    for (const RecipeChoice& choice : find_recipe(std::string(source.name)).choices) {
      CAPTURE(choice.flag);
      CHECK((choice.flag == "model" || app.get_option_no_throw("--" + choice.flag) != nullptr));
    }
  }
}

TEST_CASE("PEFT's recipes shard where the estimate means FSDP2, and copy where it means DDP") {
  for (const auto& [method, name] : {std::pair{Method::lora, "peft-lora"}, std::pair{Method::qlora, "peft-qlora"}}) {
    CAPTURE(name);
    Job job = unresolved_job();
    job.method = method;
    job.quantization = method == Method::qlora ? "nf4-double" : "none";
    job.sequence = 1024;
    job.micro_batch = job.accumulation = 1;
    job.sharding = "full-shard";
    job.mesh = {.replicate = 1, .shard = 2};
    const StackRecipe sharded = recipe_of(stack_named("transformers"), job, {});
    CHECK(sharded.recipe == name);
    CHECK(sharded.values.at("sharding") == "full-shard");
    CHECK(sharded.values.at("optimizer") == "adamw_torch_fused");  // bitsandbytes' has no shards
    job.sharding = "shard-grad-op";
    CHECK_THROWS_WITH_AS(recipe_of(stack_named("transformers"), job, {}),
                         doctest::Contains("--sharding shard-grad-op in a rehearsal of recipe peft-"), NotModelled);
    job.sharding = "no-shard";
    job.mesh = {.replicate = 2, .shard = 1};
    CHECK(recipe_of(stack_named("transformers"), job, {"sharding"}).values.at("sharding") == "no-shard");
  }
}

TEST_CASE("the recipe of DeepSpeed has its sizes and whether it overlaps") {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("deepspeed"), parse_cluster("2xA100-40GB")));
  job.sequence = 1024;
  job.micro_batch = job.accumulation = 1;
  job.mesh = {.replicate = 1, .shard = 2};
  job.overlap_comm = false;
  job.zero3_sizes.sub_group_size = 5;
  job.zero3_sizes.prefetch_bucket_size = kByHiddenSize;
  const std::vector<std::string> fixed{"overlap_comm", "zero3_sizes"};
  const StackRecipe made = recipe_of(stack_named("deepspeed"), job, fixed);
  CHECK(made.values.at("overlap-comm") == "off");
  CHECK(made.values.at("zero3-sizes") == "prefetch_bucket_size=auto,sub_group_size=5");
  job.zero3_sizes = {};
  CHECK(recipe_of(stack_named("deepspeed"), job, fixed).values.at("zero3-sizes") == "default");
  const Recipe recipe = find_recipe("deepspeed-zero3");
  for (const char* wrong : {"sub_group_size=many", "a b=1", "sometimes"}) {
    CHECK_THROWS_WITH_AS(recipe_script(recipe, recipe_values(recipe, {{"zero3-sizes", wrong}}), "model"),
                         doctest::Contains("--zero3-sizes"), InputError);
  }
  job.optimizer_implementation = OptimizerImplementation::deepspeed;
  job.runtime = Runtime::pytorch_fsdp2;
  CHECK_THROWS_WITH_AS(recipe_of(stack_named("transformers"), job, {"optimizer"}),
                       doctest::Contains("--stack deepspeed has it"), NotModelled);
}

TEST_CASE("what DeepSpeed's recipe would end with is refused before it runs") {
  const std::vector<std::string> fixed{"sharding", "offload", "optimizer"};
  const auto asked = [&](const char* sharding, const char* offload, const char* optimizer) {
    Job job = on_stack(unresolved_job(), stack_named("deepspeed").several_gpus);
    job.sequence = job.micro_batch = job.accumulation = 1;
    for (const auto& [field, value] :
         {std::pair{"sharding", sharding}, {"offload", offload}, {"optimizer", optimizer}}) {
      job_field_named(field).set(job, value);
    }
    return recipe_of(stack_named("deepspeed"), job, fixed);
  };
  CHECK_NOTHROW(asked("full-shard", "params", "adamw"));
  CHECK_NOTHROW(asked("shard-grad-op", "none", "sgd"));
  for (const char* const offload : {"params", "params:pageable"}) {
    CHECK_THROWS_WITH_AS(asked("shard-grad-op", offload, "adamw"), doctest::Contains("--offload params"), NotModelled);
  }
  for (const char* const optimizer : {"sgd", "adamw:paged"}) {
    CHECK_THROWS_WITH_AS(asked("full-shard", "optimizer", optimizer), doctest::Contains("--optimizer "), NotModelled);
  }
}

TEST_CASE("a stack's recipe has the weights' format that its method has, and no other") {
  for (const auto& [method, of_recipe] :
       {std::pair{Method::full, "none"}, std::pair{Method::lora, "none"}, std::pair{Method::qlora, "nf4-double"}}) {
    for (const std::string format : {"none", "fp8", "int8", "nf4", "nf4-double"}) {
      CAPTURE(format);
      Job job = unresolved_job();
      job.method = method;
      job.quantization = format;
      job.sequence = 1024;
      job.micro_batch = job.accumulation = 1;
      const auto made = [&] { return recipe_of(stack_named("transformers"), job, {"quantization"}); };
      if (format == of_recipe) {
        CHECK_NOTHROW(made());
      } else {
        CHECK_THROWS_WITH_AS(made(), doctest::Contains("--quantization"), NotModelled);
      }
    }
  }
}

}  // namespace
}  // namespace vramfit
