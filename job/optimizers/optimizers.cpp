#include "job/optimizers/optimizers.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {

namespace {

namespace options {
#define OPTIMIZER(name, values, ...) constexpr auto name = std::to_array<OptimizerOption>({__VA_ARGS__});
#include "job/optimizers/optimizers.def"
#undef OPTIMIZER
}  // namespace options

/// "adamw-8bit" of "adamw-8bit:fused".
constexpr std::string_view name_in(std::string_view values) { return values.substr(0, values.find(':')); }

constexpr auto kNames = std::to_array<OptimizerName>({
#define OPTIMIZER(name, values, ...) {name_in(values), values, options::name},
#include "job/optimizers/optimizers.def"
#undef OPTIMIZER
});

const OptimizerOption* option_named(const OptimizerName& optimizer, std::string_view name) {
  const auto found = std::ranges::find(optimizer.options, name, &OptimizerOption::name);
  return found == optimizer.options.end() ? nullptr : &*found;
}

/// "Option of --optimizer adamw, adamw-8bit (default: 0.999); lion (default: 0.99)".
OptimizerFlag flag_of(std::string_view option) {
  OptimizerFlag flag{.option = std::string(option), .flag = fmt::format("--{}", option), .help = {}};
  struct Owners {
    double value;
    std::vector<std::string_view> names;
  };
  std::vector<Owners> groups;
  for (const OptimizerName& optimizer : kNames) {
    const OptimizerOption* const own = option_named(optimizer, option);
    if (own == nullptr) continue;
    auto group = std::ranges::find(groups, own->value, &Owners::value);
    if (group == groups.end()) group = groups.insert(group, {.value = own->value, .names = {}});
    group->names.push_back(optimizer.name);
    flag.most = std::max(flag.most, own->most);
  }
  std::vector<std::string> owners;
  for (const Owners& group : groups) {
    owners.push_back(fmt::format("{} (default: {})", fmt::join(group.names, ", "), group.value));
  }
  flag.help = fmt::format("Option of --optimizer {}", fmt::join(owners, "; "));
  return flag;
}

std::vector<OptimizerFlag> make_flags() {
  std::vector<OptimizerFlag> flags;
  for (const OptimizerName& optimizer : kNames) {
    for (const OptimizerOption& option : optimizer.options) {
      if (std::ranges::find(flags, option.name, &OptimizerFlag::option) == flags.end()) {
        flags.push_back(flag_of(option.name));
      }
    }
  }
  return flags;
}

}  // namespace

double OptimizerOptions::operator[](std::string_view option) const {
  const auto found = values.find(option);
  if (found == values.end()) throw std::out_of_range(fmt::format("an optimizer has no option {}", option));
  return found->second;
}

std::span<const OptimizerName> optimizer_names() { return kNames; }

std::size_t optimizer_number(std::string_view name) {
  const auto* const row = std::ranges::find(kNames, name, &OptimizerName::name);
  if (row != kNames.end()) return static_cast<std::size_t>(row - kNames.begin());
  std::vector<std::string> names;
  for (const OptimizerName& known : kNames) names.emplace_back(known.name);
  throw InputError(fmt::format("optimizer \"{}\": unknown{}", printable(name), did_you_mean(name, names)));
}

const std::vector<OptimizerFlag>& optimizer_flags() {
  static const std::vector<OptimizerFlag> kFlags = make_flags();
  return kFlags;
}

OptimizerOptions complete_options(OptimizerOptions given, std::string_view optimizer) {
  const OptimizerName& row = kNames.at(optimizer_number(optimizer));
  for (const auto& [name, value] : given.values) {
    const OptimizerOption* const option = option_named(row, name);
    if (option == nullptr) {
      std::vector<std::string> flags;
      for (const OptimizerOption& own : row.options) flags.push_back(fmt::format("--{}", own.name));
      throw InputError(
          fmt::format("--{}: --optimizer {} has no such option (it has {})", name, row.name, fmt::join(flags, ", ")));
    }
    if (value > option->most) {
      throw InputError(fmt::format("--{}: {} is more than {}, the most that --optimizer {} takes", name, value,
                                   option->most, row.name));
    }
    if (value < option->least) {
      throw InputError(fmt::format("--{}: {} is less than {}, the least that --optimizer {} takes", name, value,
                                   option->least, row.name));
    }
  }
  for (const OptimizerOption& option : row.options) given.values.try_emplace(std::string(option.name), option.value);
  return given;
}

}  // namespace vramfit
