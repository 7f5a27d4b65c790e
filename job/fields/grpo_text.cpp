#include "job/fields/grpo_text.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/field_text.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 20;
constexpr std::string_view kReference = "reference";

struct CountRow {
  std::string_view name;
  std::int64_t GrpoChoices::*count;
};
constexpr std::array kCounts{
    CountRow{"num_iterations", &GrpoChoices::num_iterations},
    CountRow{"steps_per_generation", &GrpoChoices::steps_per_generation},
};

void set_choice(GrpoChoices& choices, const std::string& part) {
  if (part == kReference) {
    choices.has_reference = true;
    return;
  }
  for (const CountRow& row : kCounts) {
    if (!part.starts_with(fmt::format("{}=", row.name))) continue;
    choices.*row.count = whole_number(key_and_value(part).second, 1, kMost);
    return;
  }
  unknown_value(part, {std::string(kReference), "num_iterations=N", "steps_per_generation=N"});
}

}  // namespace

std::string get_grpo(const Job& job) {
  const GrpoChoices usual;
  std::string text(job.grpo.has_reference ? kReference : "");
  for (const CountRow& row : kCounts) {
    const std::int64_t count = job.grpo.*row.count;
    if (count != usual.*row.count) text += fmt::format("{}{}={}", text.empty() ? "" : ",", row.name, count);
  }
  return text;
}

void set_grpo(Job& job, std::string_view value) {
  GrpoChoices choices;
  std::vector<std::string> seen;
  if (value != "default") {
    for (const std::string& part : split_list(value)) {
      set_choice(choices, part);
      const std::string name = part.substr(0, part.find('='));
      if (std::ranges::find(seen, name) != seen.end()) throw InputError(fmt::format("{}: is there twice", name));
      seen.push_back(name);
    }
  }
  job.grpo = choices;
}

}  // namespace vramfit
