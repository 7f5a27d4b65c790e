// What can be asked of an optimizer: names and options, from the list in job/optimizers/optimizers.def.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "job/run/run_options.h"

namespace vramfit {

struct OptimizerOption {
  std::string_view name;  // "weight-decay"; its flag is "--weight-decay"
  double value = 0;       // default
  double most = 0;
  double least = 0;
};

struct OptimizerName {
  std::string_view name;    // "adamw"
  std::string_view values;  // of --optimizer: "adamw:fused|adamw:foreach", the default first
  std::span<const OptimizerOption> options;
};

/// In the order of the list, as are the tables of program/optimizers and executor/optimizers.
std::span<const OptimizerName> optimizer_names();

/// The place of `name` in the list; throws InputError with a suggestion.
std::size_t optimizer_number(std::string_view name);

/// All values that --optimizer takes, "adamw:fused|adamw:foreach|...".
inline constexpr std::string_view kOptimizerValues =
    std::string_view{
#define OPTIMIZER(name, values, ...) "|" values
#include "job/optimizers/optimizers.def"
#undef OPTIMIZER
    }
        .substr(1);

/// An option that some optimizers have, and what its flag says of them.
struct OptimizerFlag {
  std::string option, flag, help;  // "beta1"; "--beta1"; "Option of --optimizer adamw, lion (default: 0.9)"
  double most = 0;                 // of the optimizer that takes the most
};

/// Each option once, in the order of the list.
const std::vector<OptimizerFlag>& optimizer_flags();

/// `given` with the defaults of `optimizer` for what is missing. Throws InputError for an option that this optimizer
/// doesn't have, and for a value that only another one takes.
OptimizerOptions complete_options(OptimizerOptions given, std::string_view optimizer);

}  // namespace vramfit
