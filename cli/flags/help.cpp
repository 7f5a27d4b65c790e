#include "cli/flags/help.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/command_line.h"
#include "cli/format/terminal.h"
#include "cli/format/wrap.h"

namespace vramfit {
namespace {

constexpr std::array kHeadings{kCommonFlags, kShardingFlags, kPrecisionFlags, kMemoryFlags,     kSoftwareFlags,
                               kRecipeFlags, kRunFlags,      kOptimizerFlags, kCheckpointFlags, kOutputFlags};
constexpr std::size_t kNameColumn = 32;  // where descriptions begin
constexpr std::size_t kNarrow = 72;      // on narrower terminals they begin on a line of their own
constexpr std::size_t kNarrowColumn = 6;
constexpr std::size_t kWidest = 110;  // longer lines are hard to read

class HelpText {
 public:
  explicit HelpText(std::size_t width) : width_(std::min(width, kWidest)) {}

  void paragraph(std::string_view text) {
    for (const std::string& line : wrapped(text, width_)) text_ += line + "\n";
  }
  void heading(std::string_view name) { text_ += fmt::format("\n{}:\n", name); }
  void verbatim(std::string_view line) { text_ += fmt::format("  {}\n", line); }

  /// A name on the left and what it means on the right.
  void entry(const std::string& name, std::string_view meaning, std::size_t name_column = kNameColumn) {
    const std::size_t column = width_ < kNarrow ? kNarrowColumn : name_column;
    text_ += "  " + name;
    std::size_t at = name.size() + 2;
    for (const std::string& line : wrapped(meaning, width_ - column)) {
      if (at + 2 > column) {
        text_ += "\n";
        at = 0;
      }
      text_ += fmt::format("{:{}}{}", "", column - at, line);
      at = width_;
    }
    text_ += "\n";
  }

  std::string take() { return std::move(text_); }

 private:
  std::size_t width_;
  std::string text_;
};

std::string flag_text(const CLI::Option& option) {
  std::string text;
  for (const std::string& name : option.get_snames()) text += fmt::format("-{}, ", name);
  text += "--" + option.get_lnames().front();
  if (option.get_type_size() != 0 && option.get_items_expected_max() > 0) text += " " + option.get_type_name();
  return text;
}

std::size_t heading_rank(const std::string& group) {
  return static_cast<std::size_t>(std::ranges::find(kHeadings, group) - kHeadings.begin());
}

void add_flags(HelpText& text, const CLI::App& app) {
  std::vector<std::string> groups = app.get_groups();
  std::ranges::stable_sort(groups, {}, heading_rank);
  for (const std::string& group : groups) {
    const auto flags = app.get_options(
        [&](const CLI::Option* option) { return option->nonpositional() && option->get_group() == group; });
    if (group.empty() || flags.empty()) continue;
    text.heading(heading_rank(group) < kHeadings.size() ? group : "Other");
    for (const CLI::Option* flag : flags) text.entry(flag_text(*flag), flag->get_description());
  }
}

void add_arguments(HelpText& text, const CLI::App& app) {
  const auto arguments = app.get_options([](const CLI::Option* option) { return option->get_positional(); });
  if (!arguments.empty()) text.heading("Arguments");
  for (const CLI::Option* argument : arguments) {
    text.entry(argument->get_name(true, false), argument->get_description());
  }
}

void add_commands(HelpText& text) {
  constexpr std::size_t kCommandColumn = 14;
  text.heading("Commands");
  for (const Command& command : commands()) text.entry(std::string(command.name), command.summary, kCommandColumn);
}

class Formatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string /*name*/, CLI::AppFormatMode /*mode*/) const override {
    HelpText text(static_cast<std::size_t>(terminal_width()));
    const Command& command = described(*app);
    text.paragraph(command.summary);
    text.paragraph("");
    text.paragraph(fmt::format("Usage: vramfit {}", command.usage));
    if (!command.examples.front().empty()) text.heading("Examples");
    for (const std::string_view example : command.examples) {
      if (!example.empty()) text.verbatim(example);
    }
    if (app->get_parent() == nullptr) {
      add_commands(text);
    } else {
      add_arguments(text, *app);
    }
    add_flags(text, *app);
    return text.take();
  }

 private:
  static const Command& described(const CLI::App& app) {
    const auto found = std::ranges::find(commands(), app.get_name(), &Command::name);
    return found == commands().end() ? whole_program() : *found;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<Formatter>(); }

std::string help_of(const std::string& name) {
  int unused = 0;
  const std::unique_ptr<CLI::App> app = make_command_line(unused);
  if (name.empty()) return app->help();
  std::vector<std::string> known;
  for (const Command& command : commands()) known.emplace_back(command.name);
  if (std::ranges::find(known, name) == known.end()) {
    throw InputError(fmt::format("{}: unknown command{}", printable(name), did_you_mean(name, known)));
  }
  return app->get_subcommand(name)->help();
}

}  // namespace vramfit
