#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format/plan_text.h"
#include "cli/job_flags.h"
#include "cli/model.h"
#include "model_specs/error.h"
#include "planner/plan_json.h"

namespace vramfit {
namespace {

struct PlanFlags {
  JobFlags job;
  std::string allow, output;
  bool json = false, no_clip = false;
};

int run_plan(const PlanFlags& flags) {
  const JobChoice choice = read_job_choice(flags.job);
  const Allowed allowed = parse_allowed(flags.allow);
  const PlanRequest request{.spec = read_model(flags.job.model),
                            .job = choice.job,
                            .fixed = choice.fixed,
                            .cluster = read_cluster_flag(flags.job),
                            .allowed = allowed,
                            .clip = !flags.no_clip};
  const Plan plan = make_plan(request);
  if (plan.chosen && !flags.output.empty()) write_file(flags.output, plan_to_json(request, plan));
  if (flags.json) {
    if (flags.output != "-") write_file("-", plan_to_json(request, plan));
  } else if (flags.output != "-") {
    write_file("-", plan_text(request, plan, detect_terminal()));
  }
  if (plan.chosen && !flags.output.empty() && flags.output != "-") {
    std::fprintf(stderr, "vramfit: plan written to %s\n", flags.output.c_str());
  }
  return static_cast<int>(plan.chosen ? ExitCode::done : ExitCode::no_plan);
}

}  // namespace

void add_plan(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<PlanFlags>();
  add_job_flags(command, flags->job);
  command
      .add_option("--allow", flags->allow, "Changes of the result that may be used: precision:bf16-pure, seq-len, any")
      ->type_name("KIND[:VALUE],...");
  command.add_option("-o,--output", flags->output, "Write the plan; - is stdout")->type_name("FILE");
  command.add_flag("--json", flags->json, "Print the plan as JSON (configs/schemas/plan.schema.json)");
  command.add_flag("--no-clip", flags->no_clip, "Plan a step without gradient clipping");
  command.callback([flags, &exit_code] { exit_code = run_plan(*flags); });
}

}  // namespace vramfit
