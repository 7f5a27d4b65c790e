#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/compare/compare.h"
#include "cli/files.h"

namespace vramfit {
namespace {

struct CompareFlags {
  std::string plan, run, tolerance = "2%", events;
  bool json = false;
};

int run_compare(const CompareFlags& flags) {
  const double tolerance = parse_tolerance(flags.tolerance);
  const PlanFile plan = plan_from_json(read_file(flags.plan), flags.plan);
  const std::string measured = read_file(flags.run);
  Comparison comparison;
  if (!is_rehearsal(measured, flags.run)) {
    const RunRecord run = run_from_json(measured, flags.run);
    comparison = compare(plan, run, tolerance);
    if (!flags.events.empty()) comparison.events = compare_events(plan, run, flags.events);
  } else if (flags.events.empty()) {
    comparison = compare_rehearsal(plan, measured, flags.run, tolerance);
  } else {
    throw InputError("--events: a rehearsed script has no events with the plan's labels; only vramfit run writes them");
  }
  write_file("-", flags.json ? comparison_to_json(comparison) : comparison_text(comparison));
  return static_cast<int>(comparison.within() ? ExitCode::done : ExitCode::outside_tolerance);
}

}  // namespace

void add_compare(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<CompareFlags>();
  command.add_option("PLAN", flags->plan, "plan.json: the prediction")->required();
  command.add_option("RUN", flags->run, "run.json: the measurement, or a rehearsal (vramfit rehearse -o)")->required();
  command
      .add_option("--tolerance", flags->tolerance, "Largest error of the peaks that passes, 2% or 0.02. Default: 2%")
      ->type_name("SHARE");
  command
      .add_option("--events", flags->events,
                  "Also compare allocation by allocation and name the first that differs; DIR as written by "
                  "vramfit run --events DIR")
      ->type_name("DIR");
  command.add_flag("--json", flags->json, "Print one JSON object (configs/schemas/comparison.schema.json)");
  command.callback([flags, &exit_code] { exit_code = run_compare(*flags); });
}

}  // namespace vramfit
