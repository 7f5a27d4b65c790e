#include <memory>

#include <CLI/CLI.hpp>

#include "cli/commands/commands.h"
#include "cli/compare/compare.h"
#include "cli/files.h"
#include "model_specs/error.h"

namespace vramfit {
namespace {

struct CompareFlags {
  std::string plan, run, tolerance = "2%";
  bool json = false;
};

int run_compare(const CompareFlags& flags) {
  const double tolerance = parse_tolerance(flags.tolerance);
  const PlanFile plan = plan_from_json(read_file(flags.plan), flags.plan);
  const std::string measured = read_file(flags.run);
  const Comparison comparison = is_rehearsal(measured, flags.run)
                                    ? compare_rehearsal(plan, measured, flags.run, tolerance)
                                    : compare(plan, run_from_json(measured, flags.run), tolerance);
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
  command.add_flag("--json", flags->json, "Print one JSON object (configs/schemas/comparison.schema.json)");
  command.callback([flags, &exit_code] { exit_code = run_compare(*flags); });
}

}  // namespace vramfit
