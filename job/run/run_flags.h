// The table of a run's flags, read by `vramfit run`, by vramfit-train, by the ranks that compare their flags, and by a
// run that resumes. Adding a flag is one row, and a member of RunOptions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "job/optimizers/optimizers.h"
#include "job/run/run_options.h"

namespace vramfit {

/// Under which heading --help of `vramfit run` shows a flag. internal: only vramfit-train has it.
enum class RunFlagGroup { run, optimizer, checkpoints, output, internal };

struct RunFlag {
  std::string_view name;    // "--save-every"
  std::string_view values;  // "N"
  std::string_view help;    // effect, unit and default
  RunFlagGroup group;
  /// Throws InputError that says what is wrong with `value`, without the flag's name. Null where `option` is not.
  void (*set)(RunOptions& options, std::string_view value);
  /// The value as text, where all ranks must have the same, as it decides what is computed or which collectives are
  /// made. Null: a rank's own affair, such as where it alone writes and what it may use of its machine.
  std::string (*shared)(const RunOptions& options) = nullptr;
  /// Whether a resumed run must have the value of the run that saved, because it decides how the run trains.
  bool must_match_at_resume = false;
  const OptimizerFlag* option = nullptr;  // of optimizers, whose value it is; null: a flag of its own
};

std::span<const RunFlag> run_flags();

/// The value of a shared flag as text; nothing for one that is not shared, and for an option that is not set.
std::optional<std::string> shared_text(const RunFlag& flag, const RunOptions& options);

/// Reads flags, each followed by its value or joined to it by '='; throws InputError naming the flag.
RunOptions parse_run_flags(std::span<const std::string> arguments);

/// The help of vramfit-train.
std::string run_flags_help();

/// "auto", "bar", "lines", "none"; throws InputError.
ProgressStyle progress_style(std::string_view text);

/// "2-3" or "5"; throws InputError.
StepRange step_range(std::string_view text);

}  // namespace vramfit
