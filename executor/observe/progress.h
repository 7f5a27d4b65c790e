// A run's progress on stderr: a bar that is rewritten in place on a terminal, one line per step elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "executor/observe/step_report.h"
#include "job/run/run_options.h"

namespace vramfit {

/// Where the lines end up. `vramfit run` reads them through a pipe and says in VRAMFIT_TERMINAL_COLUMNS that it shows
/// them on a terminal, and how wide that is.
struct ProgressTerminal {
  bool own = false, launched = false;  // stderr is a terminal; the launcher's is
  bool color = false;                  // never with NO_COLOR or TERM=dumb
  int columns = 80;
  bool any() const { return own || launched; }
};

/// Reads COLUMNS (a number from 20 to 1000; anything else is passed over), then asks the terminal, then the launcher.
ProgressTerminal progress_terminal();

/// A width that the environment claims, or 0 when the text is none.
int columns_from(std::string_view text);

/// The bar of a step, never wider than `columns` - 1 characters: what matters least is left out first. `left`: seconds
/// to go, negative when not known.
std::string bar_text(const StepReport& report, std::int64_t steps, double left, const ProgressTerminal& terminal);

/// The line of a step if stderr is not a terminal.
std::string line_text(const StepReport& report, std::int64_t steps);

class Progress {
 public:
  Progress(ProgressStyle style, std::int64_t first_step, std::int64_t steps);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  Progress(Progress&&) = delete;
  Progress& operator=(Progress&&) = delete;

  void show(const StepReport& report);
  /// Leaves the bar as it is and goes to the next line.
  void finish();

 private:
  double seconds_left(const StepReport& report);

  ProgressStyle style_;
  std::int64_t first_step_, steps_;
  double seconds_ = 0;  // of the steps after the first
  bool open_ = false;
};

}  // namespace vramfit
