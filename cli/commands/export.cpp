#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/text/shell_quoted.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/configs/export/export.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "job/stacks/stacks.h"

namespace vramfit {
namespace {

struct ExportFlags {
  std::string plan, tool, output;
};

const ExportTool& wanted_tool(const ExportFlags& flags) {
  if (flags.tool.empty()) {
    throw InputError(fmt::format("--to: missing; name a tool: {}", fmt::join(export_tool_names(), ", ")));
  }
  try {
    return export_tool_named(flags.tool);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--to: {}", error.what()));
  }
}

/// Whether the tool is what the plan's figures are for: its stack, or one of its stacks (trl, trl-dpo, ...).
bool is_planned_for(const PlanFile& plan, const ExportTool& tool) {
  if (plan.job.modeling == Modeling::torchtitan) return false;  // what is written is for release 0.2
  const std::string_view stack = stack_of(plan.job).name;
  return stack == tool.name || stack.starts_with(fmt::format("{}-", tool.name));
}

/// The plan's figures are those of whoever its job is for, and of all that the plan says. "" where that is what was
/// written.
std::string figures_note(const PlanFile& plan, const ExportTool& tool, const Export& exported,
                         const std::string& folder) {
  if (is_planned_for(plan, tool)) {
    if (exported.marks.empty()) return "";
    return "\nNote: the plan's figures hold for this tool if what isn't carried is set as the plan has it\n";
  }
  std::string jobs;
  for (const ExportedFile& file : exported.files) {
    const std::string path = folder.empty() ? file.name : (std::filesystem::path(folder) / file.name).string();
    jobs += fmt::format(" --job {}", shell_quoted(printable(path, 4096)));
  }
  const bool is_of_2024 = plan.job.modeling == Modeling::torchtitan;
  const std::string_view whose = is_of_2024 ? "torchtitan as of December 2024" : stack_of(plan.job).what;
  return fmt::format(
      "\nNote: the plan's figures are for {}; ask for the tool's: vramfit estimate {}{}{} --gpus {} --rehearse auto\n",
      whose, shell_quoted(printable(plan.spec.name)), jobs, exported.job_flags, plan.cluster.text);
}

void write_files(const Export& exported, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FaultError(fmt::format("-o {}: can't be made: {}", printable(folder), error.message()));
  for (const ExportedFile& file : exported.files) {
    write_file((std::filesystem::path(folder) / file.name).string(), file.text);
  }
}

PlanFile read_plan(const std::string& path) {
  const std::string text = read_file(path);
  try {
    return plan_from_json(text, path);
  } catch (const InputError& error) {
    if (text.find("vramfit/plan@") != std::string::npos) throw;
    throw InputError(fmt::format("{}; expected a plan, as \"vramfit plan MODEL --gpus CLUSTER -o plan.json\" writes it",
                                 error.what()));
  }
}

int run_export(const ExportFlags& flags) {
  if (flags.plan.empty())
    throw InputError("plan.json: missing; \"vramfit plan MODEL --gpus CLUSTER -o plan.json\" makes one");
  const ExportTool& tool = wanted_tool(flags);
  const PlanFile plan = read_plan(flags.plan);
  const Export exported = export_plan(plan, tool);
  std::string text;
  if (!flags.output.empty()) {
    write_files(exported, flags.output);
    for (const ExportedFile& file : exported.files) {
      text += fmt::format("{}\n", (std::filesystem::path(flags.output) / file.name).string());
    }
  } else {
    for (const ExportedFile& file : exported.files) text += fmt::format("--- {}\n{}", file.name, file.text);
  }
  text += fmt::format("\nStart it with\n  {}\n", exported.command);
  if (!exported.marks.empty()) text += "\nNot carried from the plan\n";
  for (const std::string& mark : exported.marks) text += fmt::format("  {}\n", mark);
  write_file("-", text + figures_note(plan, tool, exported, flags.output));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_export(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ExportFlags>();
  command.add_option("PLAN", flags->plan, "plan.json, as \"vramfit plan -o\" writes it");
  command.add_option("--to", flags->tool, "The tool whose configuration is written")
      ->type_name(fmt::format("{}", fmt::join(export_tool_names(), "|")))
      ->group(kOutputFlags);
  command.add_option("-o,--output", flags->output, "Write the files into DIR. Default: print them")
      ->type_name("DIR")
      ->group(kOutputFlags);
  command.callback([flags, &exit_code] { exit_code = run_export(*flags); });
}

}  // namespace vramfit
