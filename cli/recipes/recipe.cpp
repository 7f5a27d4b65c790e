#include "cli/recipes/recipe.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/kernels_text.h"

namespace vramfit {
namespace {

constexpr std::string_view kMark = "  # --", kModel = "model";
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kLongestWord = 80;

/// What a library's options look like: adamw_torch_fused, apollo_adamw, torch.optim.AdamW.
bool is_word(std::string_view text) {
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; };
  return !text.empty() && text.size() <= kLongestWord && std::ranges::all_of(text, is_plain);
}

/// A list of sizes ends the values that a choice has: "default|auto|NAME=N,...".
constexpr std::string_view kSizes = "NAME=N,...";

/// "max_live_parameters=0,sub_group_size=1000000".
void check_sizes(const std::string& text) {
  for (const std::string& each : split_list(text)) {
    const auto [name, size] = key_and_value(each);
    if (!is_word(name)) throw InputError(fmt::format("{}: expected NAME=N", printable(each, kLongestWord)));
    if (size != "auto") whole_number(size, 0, std::numeric_limits<std::int64_t>::max());
  }
}

/// Likewise parts of Liger.
constexpr std::string_view kParts = "liger:PART=on,...";
constexpr std::string_view kBeforeParts = "liger:";

/// "liger:rope=off,swiglu=on".
void check_parts(const std::string& text) {
  Job job;
  set_kernels(job, text);
  if (job.axolotl.any()) throw InputError("no recipe has axolotl's kernels");
}

/// A line `NAME = VALUE  # --flag a|b`, in its parts.
struct ChoiceLine {
  std::string_view name, value, flag, values;
};

std::optional<ChoiceLine> split_choice(std::string_view line) {
  const std::size_t mark = line.find(kMark), equals = line.find(" = ");
  if (mark == std::string_view::npos || equals == std::string_view::npos || equals > mark) return std::nullopt;
  ChoiceLine parts{.name = line.substr(0, equals),
                   .value = line.substr(equals + 3, mark - equals - 3),
                   .flag = line.substr(mark + kMark.size()),
                   .values = {}};
  if (const std::size_t space = parts.flag.find(' '); space != std::string_view::npos) {
    parts.values = parts.flag.substr(space + 1);
    parts.flag = parts.flag.substr(0, space);
  }
  return parts;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

RecipeChoice choice_of(const ChoiceLine& line) {
  RecipeChoice choice{.flag = std::string(line.flag), .value = std::string(line.value), .is_text = false, .values = {}};
  if (line.value.starts_with('"') && line.value.ends_with('"') && line.value.size() > 1) {
    choice.is_text = true;
    choice.value = line.value.substr(1, line.value.size() - 2);
    if (!line.values.empty()) choice.values = split_list(line.values, '|');
  }
  return choice;
}

/// Throws InputError if the script can't take it.
void check_value(const RecipeChoice& choice, const std::string& value) {
  if (!choice.is_text) {
    const bool may_be_none = choice.flag == "lora-rank" || choice.flag == "rotary-positions";
    whole_number(value, may_be_none ? 0 : 1, kMost);
  } else if (choice.values.empty()) {
    if (!is_word(value)) throw InputError("expected a name, as the library takes it");
  } else if (std::ranges::find(choice.values, value) == choice.values.end() || value == kSizes || value == kParts) {
    if (choice.values.back() == kSizes && value.find('=') != std::string::npos) return check_sizes(value);
    if (choice.values.back() == kParts && value.starts_with(kBeforeParts)) return check_parts(value);
    unknown_value(value, choice.values);
  }
}

/// In quotes, with escapes that Python reads too.
std::string in_quotes(std::string_view text) {
  JsonWriter writer(JsonForm::one_line);
  std::string line = writer.text(text).take();
  line.pop_back();  // the line's end
  return line;
}

}  // namespace

Recipe parse_recipe(const RecipeSource& source) {
  Recipe recipe;
  recipe.name = source.name;
  recipe.text = source.text;
  const std::vector<std::string_view> lines = lines_of(source.text);
  const auto header = [&](std::size_t at, std::string_view key) {
    const std::string begin = fmt::format("# {}: ", key);
    if (at < lines.size() && lines[at].starts_with(begin)) return std::string(lines[at].substr(begin.size()));
    throw FaultError(fmt::format("recipe {}, line {}: expected \"{}\"", source.name, at + 1, begin));
  };
  recipe.summary = header(0, "recipe");
  recipe.libraries = split_list(header(1, "libraries"), ' ');
  for (const std::string& word : split_list(header(2, "launch"), ' ')) {
    if (word != "python" && word != "torchrun") {
      throw FaultError(fmt::format("recipe {}, line 3: expected python or torchrun", source.name));
    }
    (word == "python" ? recipe.alone : recipe.several) = true;
  }
  for (const std::string_view line : lines) {
    const std::optional<ChoiceLine> parts = split_choice(line);
    if (!parts || parts->flag == kModel) continue;
    recipe.choices.push_back(choice_of(*parts));
    try {
      check_value(recipe.choices.back(), recipe.choices.back().value);
    } catch (const InputError& error) {
      throw FaultError(fmt::format("recipe {}: --{}: {}", source.name, parts->flag, error.what()));
    }
  }
  return recipe;
}

Recipe find_recipe(const std::string& name) {
  std::vector<std::string> known;
  for (const RecipeSource& source : recipe_sources()) {
    if (source.name == name) return parse_recipe(source);
    known.emplace_back(source.name);
  }
  throw InputError(fmt::format("--recipe {}: unknown{}", printable(name, kLongestWord), did_you_mean(name, known)));
}

RecipeValues recipe_values(const Recipe& recipe, const RecipeValues& given) {
  RecipeValues values;
  std::string flags;
  for (const RecipeChoice& choice : recipe.choices) {
    values[choice.flag] = choice.value;
    flags += fmt::format("{}--{}", flags.empty() ? "" : ", ", choice.flag);
  }
  for (const auto& [flag, value] : given) {
    const auto found = values.find(flag);
    if (found == values.end()) {
      throw InputError(fmt::format("--{}: recipe {} has no such choice; it has {}", flag, recipe.name, flags));
    }
    found->second = value;
  }
  return values;
}

std::string recipe_script(const Recipe& recipe, const RecipeValues& values, const std::string& model) {
  for (const RecipeChoice& choice : recipe.choices) {
    try {
      check_value(choice, values.at(choice.flag));
    } catch (const InputError& error) {
      throw InputError(
          fmt::format("--{} {}: {}", choice.flag, printable(values.at(choice.flag), kLongestWord), error.what()));
    }
  }
  std::string script;
  for (const std::string_view line : lines_of(recipe.text)) {
    const std::optional<ChoiceLine> parts = split_choice(line);
    if (!parts) {
      script += fmt::format("{}\n", line);
      continue;
    }
    const bool is_text = parts->value.starts_with('"');
    const std::string value = parts->flag == kModel ? model : values.at(std::string(parts->flag));
    script +=
        fmt::format("{} = {}{}\n", parts->name, is_text ? in_quotes(value) : value, line.substr(line.find(kMark)));
  }
  return script;
}

}  // namespace vramfit
