#include "executor/observe/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace vramfit {

namespace {

constexpr int kLeastColumns = 20, kMostColumns = 1000, kUsualColumns = 80;
constexpr int kShortestBar = 8, kLongestBar = 30;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing sets the environment by now
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

int columns_of_terminal() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// "1:02:03", "4:05".
std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::clamp(seconds, 0.0, 359'999.0 * 24));
  const std::int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

struct Field {
  std::string text;
  int weight = 0;  // the lightest goes first when there is no room
};

std::vector<Field> fields_of(const StepReport& report, std::int64_t steps, double left) {
  std::vector<Field> fields{{fmt::format("step {}/{}", report.result.step, steps), 9}};
  if (report.phantom) {
    fields.push_back({"on phantom GPUs", 8});
  } else {
    fields.push_back({fmt::format("loss {:.4f}", report.result.loss), 8});
    if (report.tokens_per_second) fields.push_back({fmt::format("{:.0f} tokens/s", *report.tokens_per_second), 7});
    fields.push_back({report.mfu ? fmt::format("MFU {:.1f} %", 100 * *report.mfu) : "MFU -", report.mfu ? 5 : 1});
  }
  fields.push_back({fmt::format("allocated {}", format_size(report.allocated)), 4});
  fields.push_back({fmt::format("reserved {}", format_size(report.reserved)), 3});
  fields.push_back({fmt::format("retries {}", report.retries), report.retries > 0 ? 7 : 2});
  if (left >= 0) fields.push_back({"ETA " + clock_text(left), 6});
  return fields;
}

int width_of(const std::vector<Field>& fields) {
  int width = -2;  // two spaces between neighbours
  for (const Field& field : fields) width += static_cast<int>(field.text.size()) + 2;
  return width;
}

std::string bar_of(double share, int cells, bool color) {
  const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * cells);
  const std::string done(filled, '#'), rest(static_cast<std::size_t>(cells) - filled, '.');
  return color ? fmt::format("[\x1b[32m{}\x1b[0m{}]", done, rest) : fmt::format("[{}{}]", done, rest);
}

/// "  scale 32768, skipped": of the next step, and whether this one changed nothing.
std::string scaling_text(const StepResult& step) {
  if (step.loss_scale == 0) return "";
  return fmt::format("  scale {:.6g}{}", step.loss_scale, step.skipped ? ", skipped" : "");
}

}  // namespace

int columns_from(std::string_view text) {
  int columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  const bool read = error == std::errc() && end == text.data() + text.size();
  return read && columns >= kLeastColumns && columns <= kMostColumns ? columns : 0;
}

ProgressTerminal progress_terminal() {
  ProgressTerminal terminal;
  const bool dumb = variable("TERM") == "dumb";
  const int launcher = columns_from(variable("VRAMFIT_TERMINAL_COLUMNS"));
  terminal.own = ::isatty(STDERR_FILENO) == 1 && !dumb;
  terminal.launched = !terminal.own && launcher > 0 && !dumb;
  terminal.color = terminal.any() && variable("NO_COLOR").empty();
  for (const int columns : {columns_from(variable("COLUMNS")), columns_of_terminal(), launcher, kUsualColumns}) {
    if (columns < kLeastColumns) continue;
    terminal.columns = std::min(columns, kMostColumns);
    break;
  }
  return terminal;
}

std::string bar_text(const StepReport& report, std::int64_t steps, double left, const ProgressTerminal& terminal) {
  std::vector<Field> fields = fields_of(report, steps, left);
  const int room = terminal.columns - 1;  // the last column is where a terminal wraps
  while (fields.size() > 1 && width_of(fields) > room) {
    fields.erase(std::ranges::min_element(fields, {}, &Field::weight));
  }
  std::string text = fields.front().text.substr(0, static_cast<std::size_t>(room));
  const int cells = std::min(kLongestBar, room - width_of(fields) - 4);
  if (cells >= kShortestBar) {
    const double share =
        static_cast<double>(report.result.step) / static_cast<double>(std::max<std::int64_t>(1, steps));
    text += "  " + bar_of(share, cells, terminal.color);
  }
  for (std::size_t i = 1; i < fields.size(); ++i) text += "  " + fields[i].text;
  return text;
}

/// Losses and speeds of a phantom would be made up, so none is shown.
std::string line_text(const StepReport& report, std::int64_t steps) {
  const StepResult& r = report.result;
  if (report.phantom) {
    return fmt::format("step {}/{} on phantom GPUs  peak {}", r.step, steps, format_size(report.run_peak));
  }
  return fmt::format("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}{}  {:.0f} tokens/s  peak {}", r.step, steps,
                     r.loss, r.gradient_norm, r.learning_rate, scaling_text(r), report.tokens_per_second.value_or(0),
                     format_gib(report.run_peak, 3));
}

Progress::Progress(ProgressStyle style, std::int64_t first_step, std::int64_t steps)
    : style_(style), first_step_(first_step), steps_(steps) {
  if (style_ == ProgressStyle::automatic)
    style_ = progress_terminal().any() ? ProgressStyle::bar : ProgressStyle::lines;
}

/// By the mean of the steps after the first, which is slower than the others.
double Progress::seconds_left(const StepReport& report) {
  const StepResult& r = report.result;
  const std::int64_t after = r.step - first_step_;
  if (after > 0) seconds_ += r.seconds;
  if (report.phantom) return -1;
  return (after > 0 ? seconds_ / static_cast<double>(after) : r.seconds) * static_cast<double>(steps_ - r.step);
}

void Progress::show(const StepReport& report) {
  if (style_ == ProgressStyle::none) return;
  std::string text;
  const double left = seconds_left(report);
  if (style_ == ProgressStyle::bar) {
    const ProgressTerminal terminal = progress_terminal();  // asked anew: windows change their size
    text = bar_text(report, steps_, left, terminal);
    // Wrapping is off meanwhile, so that a window made narrower cuts the bar instead of breaking it.
    if (terminal.any()) text = "\r\x1b[?7l" + text + "\x1b[K\x1b[?7h";
    open_ = terminal.own;
    if (!terminal.own) text += '\n';
  } else {
    text = line_text(report, steps_) + "\n";
  }
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void Progress::finish() {
  if (open_) std::fputs("\n", stderr);
  open_ = false;
}

}  // namespace vramfit
