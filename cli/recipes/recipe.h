// Scripts that train a model with a library, compiled in from configs/recipes: `rehearse --recipe trl-sft MODEL`.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

/// A script as its file has it.
struct RecipeSource {
  std::string_view name, text;
};
std::span<const RecipeSource> recipe_sources();

/// What a user may choose: a line `NAME = VALUE  # --flag` of the script, with the allowed values behind the flag if
/// not every word is one.
struct RecipeChoice {
  std::string flag;  // without its hyphens
  std::string value;
  bool is_text = false;             // a string in the script, else a whole number
  std::vector<std::string> values;  // of a text; empty: any word, which the library judges
};

struct Recipe {
  std::string name, summary;
  std::vector<std::string> libraries;  // as pip takes them: "trl>=1.0", "torchao>=0.9,<0.16"
  bool alone = false;                  // can be started as one process without a launcher, on one GPU
  bool several = false;                // can be started by torchrun
  std::vector<RecipeChoice> choices;   // "model" is not among them
  std::string text;
};

/// Of the script's first lines (`# recipe: ...`, `# libraries: ...`, `# launch: python torchrun`) and its choices.
/// Throws FaultError naming recipe and line if the file is not of that form.
Recipe parse_recipe(const RecipeSource& source);

/// Throws InputError with the names there are.
Recipe find_recipe(const std::string& name);

/// By flag, without its hyphens.
using RecipeValues = std::map<std::string, std::string>;

/// All choices: those of `given`, and the script's own for the others. Throws InputError naming the flag if the recipe
/// has no such choice.
RecipeValues recipe_values(const Recipe& recipe, const RecipeValues& given);

/// The script with these values, trained from `model`, a folder. Throws InputError naming the flag if a value is none.
std::string recipe_script(const Recipe& recipe, const RecipeValues& values, const std::string& model);

}  // namespace vramfit
